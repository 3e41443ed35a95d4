"""A run's rate over time as a picture, with moments marked on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Curve = Sequence[tuple[float, int]]
"""(seconds, steps committed), one entry whenever the number has changed."""


def rates(curve: Curve, width_s: float) -> list[tuple[float, float]]:
    """(end of each stretch of `width_s` seconds, steps per second in it). Steps that were taken back count as none.

    >>> rates([(0.0, 0), (0.5, 1), (1.0, 2), (3.5, 3)], 2.0)
    [(2.0, 1.0), (4.0, 0.5)]
    """
    if not curve:
        return []
    found, at, steps = [], 0, curve[0][1]
    end = curve[0][0] + width_s
    while at < len(curve):
        before = steps
        while at < len(curve) and curve[at][0] <= end:
            steps = curve[at][1]
            at += 1
        found.append((round(end, 3), max(0, steps - before) / width_s))
        end += width_s
    return found


def draw(path: Path, curve: Curve, tokens_per_step: float, marks: Mapping[float, str], width_s: float = 1.0) -> str:
    """Write a PNG and say where; or say why there is none."""
    try:
        import matplotlib
    except ImportError:
        return "no picture: matplotlib is not installed"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = rates(curve, width_s)
    figure, axes = pyplot.subplots(figsize=(10, 3.5), layout="constrained")
    axes.plot([t for t, _ in points], [rate * tokens_per_step / 1e3 for _, rate in points], drawstyle="steps-pre")
    axes.set(xlabel="seconds since the launcher was started", ylabel="thousand tokens/s", ylim=(0, None))
    for at, text in marks.items():
        axes.axvline(at, linestyle="--", linewidth=1, color="tab:red")
        axes.annotate(
            text, (at, 1.0), xycoords=("data", "axes fraction"), rotation=90, va="top", ha="right", fontsize=8
        )
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return str(path)
