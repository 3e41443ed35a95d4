"""Draw `docs/performance.png` from the newest result files; a panel for each benchmark that has one.

    python -m benchmarks.plot [--results benchmarks/results] [--out docs/performance.png]

Needs matplotlib (`pip install -e ".[bench]"`); without it, it says so and draws nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results_file import FOLDER, newest
from launcher.compose import REPO

OURS, OTHERS, PALE = "#1f5fa8", "#b8b8b8", "#7fb0de"
Result = dict[str, Any]


def step_panel(axes: Any, result: Result) -> bool:
    """A pack's forward, backward and optimizer step: ours, and SpecForge's where it was measured."""
    cases = [c for c in result.get("cases", []) if "step_ms" in c.get("own", {})]
    cases = [c for c in cases if "specforge" in c] or cases
    sides = {"specforge": ("SpecForge", OTHERS), "own": ("dfl-mp", OURS), "own_float8": ("float8", PALE)}
    for place, (side, (label, color)) in enumerate(sides.items()):
        found = {i: c[side]["step_ms"] for i, c in enumerate(cases) if "step_ms" in c.get(side, {})}
        if found:
            axes.bar([i + 0.27 * (place - 1) for i in found], list(found.values()), 0.27, color=color, label=label)
    axes.set_xticks(range(len(cases)), [f"{c['rows']} × {c['tokens']}" for c in cases])
    axes.legend(frameon=False)
    axes.set(title="training step of a pack", ylabel="ms", xlabel="rows × tokens")
    return bool(cases)


def target_panel(axes: Any, result: Result) -> bool:
    found = {n: v["packed_tokens_per_s"] / 1e3 for n, v in result.get("variants", {}).items() if "packed_ms" in v}
    labels = [name.replace("_", "\n") for name in found]
    axes.bar(labels, list(found.values()), color=[OTHERS if name == "plain" else OURS for name in found])
    axes.set(title="target, packed rows", ylabel="1000 tokens/s")
    return bool(found)


def handoff_panel(axes: Any, result: Result) -> bool:
    sizes = [s for s in result.get("sizes", []) if "plain" in s and "pipelined" in s]
    for way, color in (("plain", OTHERS), ("pipelined", OURS), ("intake", PALE)):
        axes.plot([s["mb"] for s in sizes], [s.get(way) for s in sizes], "o-", color=color, label=way)
    axes.set(title="hand-off by slot size", ylabel="GB/s", xlabel="MB", xscale="log", ylim=(0, None))
    axes.set_xticks([s["mb"] for s in sizes], [f"{s['mb']:.0f}" for s in sizes])
    axes.minorticks_off()
    axes.legend(frameon=False)
    return bool(sizes)


def end_to_end_panel(axes: Any, result: Result) -> bool:
    names = {"drafter_busy": "drafter busy,\nfast target", "target_busy": "target busy,\nslow target"}
    found = {text: result[key] * 100 for key, text in names.items() if key in result}
    if "two_drafters_speedup" in result:
        found["two drafters,\nof twice one"] = result["two_drafters_speedup"] * 50
    axes.bar(list(found), list(found.values()), color=OURS)
    axes.set(title="whole runs", ylabel="%", ylim=(0, 105))
    return bool(found)


def starts_panel(axes: Any, result: Result) -> bool:
    found = {name: result[f"{name}_first_step_s"] for name in ("cold", "warm") if f"{name}_first_step_s" in result}
    axes.bar(list(found), list(found.values()), color=[PALE, OURS][: len(found)])
    axes.set(title="first optimizer step after `make train`", ylabel="s", xlabel="cache of compiled code")
    return bool(found)


def scaling_panel(axes: Any, result: Result) -> bool:
    """Rate over the number of drafters, features replayed."""
    found = {int(n): f["tokens_per_s"] / 1e3 for n, f in result.get("scaling", {}).items() if "tokens_per_s" in f}
    if 1 in found:
        axes.plot(list(found), [n * found[1] for n in found], "--", color=OTHERS, label="linear")
    axes.plot(list(found), list(found.values()), "o-", color=OURS, label="measured")
    axes.set(title="drafters, features replayed", ylabel="1000 tokens/s", ylim=(0, None))
    axes.set_xticks(list(found))
    axes.legend(frameon=False)
    return len(found) > 1


def growth_panel(axes: Any, result: Result) -> bool:
    """Milliseconds per useful TFLOP over the swept value's multiples: level where a step is linear in its work."""
    sweeps = {name: s for name, s in result.items() if isinstance(s, dict) and "swept" in s}
    for name, sweep in sweeps.items():
        cases = [c for c in sweep["cases"] if "forward_backward_ms" in c]
        at = [c[sweep["swept"]] / cases[0][sweep["swept"]] for c in cases]
        prices = [c["forward_backward_ms"] / c["useful_tflop"] for c in cases]
        axes.plot(at, prices, "o-", label=name.replace("row_tokens", "tokens a row").replace("_", " "))
    axes.set(
        title="growth of a step, one layer", ylabel="ms per useful TFLOP", xlabel="times the first", ylim=(0, None)
    )
    axes.set_xscale("log", base=2)
    axes.legend(frameon=False, loc="lower left")
    return any(len(sweep["cases"]) > 1 for sweep in sweeps.values())


PANELS: tuple[tuple[str, Callable[[Any, Result], bool]], ...] = (
    ("step", step_panel),
    ("target", target_panel),
    ("handoff", handoff_panel),
    ("end_to_end", end_to_end_panel),
    ("end_to_end", starts_panel),
    ("node", scaling_panel),
    ("growth", growth_panel),
)
COLUMNS = 4


def draw(results: Path, out: Path) -> list[str]:
    """Draw the panels that there are results for; returns which. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    there = [(panel, result) for name, panel in PANELS if (result := newest(name, folder=results)) is not None]
    scratch = pyplot.figure()
    there = [(panel, result) for panel, result in there if panel(scratch.add_subplot(), result)]
    pyplot.close(scratch)
    columns = min(COLUMNS, max(1, len(there)))
    rows = -(-len(there) // columns)
    figure = pyplot.figure(figsize=(4.3 * columns, 3.75 * max(1, rows)), layout="constrained")
    for i, (panel, result) in enumerate(there):
        axes = figure.add_subplot(rows, columns, i + 1)
        panel(axes, result)
        machine = result.get("machine", {})
        where = machine.get("gpu", "CPU") if isinstance(machine, dict) else str(machine)
        axes.annotate(f"{where}, {result.get('date')}", (0, -0.28), xycoords="axes fraction", fontsize=7, color="gray")
    drawn = [panel.__name__.removesuffix("_panel") for panel, _ in there]
    if drawn:
        figure.savefig(out, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return drawn


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, default=REPO / "docs" / "performance.png")
    options = parser.parse_args(arguments)
    try:
        drawn = draw(options.results, options.out)
    except ImportError:
        print('no picture: matplotlib is not installed; pip install -e ".[bench]"', flush=True)
        return
    print(f"{options.out}: {', '.join(drawn)}" if drawn else "no picture: no results to draw", flush=True)


if __name__ == "__main__":
    main()
