"""From the journals of a cell to its line of results."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import chain
from pathlib import Path
from typing import Any

MIN_WINDOW_S = 0.2
"""A rate over less is not given."""
FIRST_STEPS = 10
"""Over which rounding has not grown yet."""

Event = dict[str, Any]


def read_journals(folder: Path) -> dict[int, list[Event]]:
    """Events of every drafter in order; a last line that was cut off by a kill is left out."""
    events: dict[int, list[Event]] = defaultdict(list)
    for file in sorted(folder.glob("drafter-*.jsonl")):
        for line in file.read_text().splitlines():
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue
            events[event["drafter"]].append(event)
    return dict(events)


def losses_of(events: list[Event]) -> list[float]:
    return [e["loss"] for e in events if e["event"] == "step"]


def summarise(
    journals: dict[int, list[Event]], began: float, reference: list[float] | None, apart: bool
) -> dict[str, Any]:
    """One cell's results, without its settings; `reference` are the lone drafter's losses on the same packs.

    `apart`: every drafter is an interpreter of its own. A rate counts the timed steps between the last drafter's first
    and the first drafter's last, when all were training.
    """
    steps = {d: [e for e in events if e["event"] == "step"] for d, events in journals.items()}
    failed = [e for events in journals.values() for e in events if e["event"] == "failed"]
    losses = {d: losses_of(events) for d, events in journals.items()}
    return {
        "steps": sum(len(s) for s in steps.values()),
        "failed_steps": len(failed),
        "errors": dict(Counter(e["error"] for e in failed)),
        "drafters": {str(d): {"steps": len(s), "failed": _count(journals[d], "failed")} for d, s in steps.items()},
        "first_step_s": _first_steps(steps, began),
        **_rates({d: _timed(events) for d, events in journals.items()}),
        "graphs": _graphs(journals, apart),
        "recompiles": _recompiles(journals, apart),
        "loss": _compared(losses, reference),
        **_said(journals),
    }


def _count(events: list[Event], kind: str) -> int:
    return sum(e["event"] == kind for e in events)


def _first_steps(steps: dict[int, list[Event]], began: float) -> list[float]:
    return [round(s[0]["time"] - began, 2) for s in steps.values() if s]


def _rates(steps: dict[int, list[Event]]) -> dict[str, Any]:
    training = {d: s for d, s in steps.items() if len(s) > 1}
    empty: dict[str, Any] = {"tokens_per_s": None, "tokens_per_s_each": []}
    if not training:
        return empty
    begin, end = max(s[0]["time"] for s in training.values()), min(s[-1]["time"] for s in training.values())
    if end - begin < MIN_WINDOW_S:
        return empty
    each = [round(sum(e["tokens"] for e in s if begin < e["time"] <= end) / (end - begin)) for s in training.values()]
    return {"tokens_per_s": sum(each), "tokens_per_s_each": each}


def _timed(events: list[Event]) -> list[Event]:
    go = next((e["time"] for e in events if e["event"] == "go"), None)
    return [e for e in events if e["event"] == "step" and go is not None and e["time"] >= go]


def _graphs(journals: dict[int, list[Event]], apart: bool) -> int:
    """Sum over interpreters; the threads of one read the same counter, of which the highest value counts."""
    highest = [max((e["graphs"] for e in events if "graphs" in e), default=0) for events in journals.values()]
    return sum(highest) if apart else max(highest, default=0)


def _recompiles(journals: dict[int, list[Event]], apart: bool) -> int:
    """Graphs compiled after every drafter of the interpreter had done its first step."""
    firsts = [next((e["graphs"] for e in ev if e["event"] == "step"), 0) for ev in journals.values()]
    lasts = [max((e["graphs"] for e in ev if "graphs" in e), default=0) for ev in journals.values()]
    if apart:
        return sum(last - first for first, last in zip(firsts, lasts, strict=True))
    return max(lasts, default=0) - max(firsts, default=0)


def _compared(losses: dict[int, list[float]], reference: list[float] | None) -> dict[str, Any]:
    """Largest relative deviation from the lone drafter over the steps that both did."""
    result: dict[str, Any] = {"first": {}, "last": {}}
    for d, values in losses.items():
        if values:
            result["first"][str(d)], result["last"][str(d)] = round(values[0], 6), round(values[-1], 6)
    if reference:
        pairs = [(a, b) for values in losses.values() for a, b in zip(values, reference, strict=False)]
        result["compared_steps"] = len(pairs)
        result["bitwise_equal"] = sum(a == b for a, b in pairs)
        deviations = [[abs(a - b) / abs(b) for a, b in zip(v, reference, strict=False)] for v in losses.values()]
        result["largest_relative_deviation"] = max(chain(*deviations), default=None)
        result["deviation_of_first_steps"] = max(chain(*(d[:FIRST_STEPS] for d in deviations)), default=None)
    return result


def _said(journals: dict[int, list[Event]]) -> dict[str, Any]:
    """What interpreters said about themselves: kernels, allocator's peak, what did not end, and why they broke."""
    every = [e for events in journals.values() for e in events]
    kernels = sorted({name for e in every if e["event"] == "kernels" for name in e["names"]})
    said: dict[str, Any] = {
        "kernels": kernels,
        "unfinished_threads": sum(e["threads"] for e in every if e["event"] == "unfinished"),
    }
    said["broken"] = [e["error"] for e in every if e["event"] == "broken"]
    said["kernel_error"] = [e["error"] for e in every if e["event"] == "kernels" and "error" in e]
    for key in ("gpu_peak_mb", "gpu_reserved_mb"):
        values = [e[key] for e in every if e["event"] == "memory" and key in e]
        said[key] = sum(values) if values else None
    if any(e["event"] == "kernels" for e in every) and any("gpu_peak_mb" in e for e in every):
        said["attention"] = "block-sparse" if any("flex_attention" in name for name in kernels) else "fell back"
    return said
