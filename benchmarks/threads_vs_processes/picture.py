"""Tokens/s of every cell as bars, beside the lone drafter's rate; what failed is written at the bar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.threads_vs_processes.groups import Cell, Group, failed_share, lone_rate, rate, unfinished

COLORS = {"alone": "#7fb0de", "threads": "#b8b8b8", "processes": "#1f5fa8"}
FAILED = "#c0392b"
BAR_INCH = 0.27


def draw(groups: Sequence[Group], path: Path) -> str:
    """Write a PNG, GPUs only where there are any, and say where; or say why there is none."""
    try:
        import matplotlib
    except ImportError:
        return 'no picture: matplotlib is not installed; pip install -e ".[bench]"'
    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [group for group in groups if group.gpus] or list(groups)
    if not shown:
        return "no picture: no results"
    heights = [len(group.cells) * BAR_INCH + 1.1 for group in shown]
    figure, grid = pyplot.subplots(
        len(shown), 1, figsize=(9, sum(heights)), height_ratios=heights, layout="constrained", squeeze=False
    )
    for axes, group in zip(grid.flat, shown, strict=True):
        _panel(axes, group)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return str(path)


def _panel(axes, group: Group) -> None:  # type: ignore[no-untyped-def]  # matplotlib's Axes
    rates = [(rate(cell) or 0) / 1e3 for cell in group.cells]
    at = range(len(group.cells))
    axes.barh(at, rates, 0.7, color=[COLORS[cell["how"]] for cell in group.cells])
    lone = lone_rate(group.cells[0], group)
    if lone is not None:
        axes.axvline(lone / 1e3, linestyle="--", linewidth=1, color="black", zorder=0)
    width = max([*rates, (lone or 0) / 1e3]) or 1.0
    for i, cell in enumerate(group.cells):
        text, color = _said(cell)
        axes.text(rates[i] + width * 0.01, i, text, va="center", fontsize=8, color=color)
    axes.set_yticks(list(at), [cell["name"] for cell in group.cells], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, width * 1.25)
    axes.set_title(group.title, fontsize=9, loc="left")
    axes.set_xlabel("1000 tokens/s of all drafters (dashed: the lone drafter)", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _said(cell: Cell) -> tuple[str, str]:
    """What is written at a cell's bar, and its colour."""
    words = [f"{100 * failed_share(cell):.0f} % of steps failed"] if cell["failed_steps"] else []
    words += ["broken"] * bool(cell["broken"]) + ["unfinished"] * unfinished(cell) + ["no rate"] * (rate(cell) is None)
    return ", ".join(words), FAILED if words else "black"
