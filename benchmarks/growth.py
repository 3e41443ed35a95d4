"""How a step's time grows with the length of its rows, its anchors and its documents, beside the work it has to do.

    python -m benchmarks.growth --seconds 150

One layer of the size's width, its whole vocabulary: what grows is the same, and a shape compiles in seconds. A sweep is
sorted by useful work (`useful_flop` in `benchmarks/shapes.py`). `worst_growth` is the largest time ratio over work
ratio of two neighbours, `growth` that of the first and last; 1 is linear, less is better. Where launches and fixed
costs dominate, a step costs less than its share, never more.
"""

from __future__ import annotations

import argparse
import gc
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.results_file import ResultFile, require_cuda
from benchmarks.shapes import VOCAB, drafter_spec, random_pack, useful_flop
from benchmarks.step import own

LAYERS = 1


class Case(NamedTuple):
    """One row of so many tokens, anchors and equally long documents."""

    tokens: int
    anchors: int
    documents: int = 1


SWEEPS = {
    "row_tokens": [Case(n, 512) for n in (1024, 32768, 4096, 16384, 8192, 2048)],
    "anchors": [Case(8192, n) for n in (64, 2048, 512, 128, 1024, 256)],
    "documents": [Case(8192, 512, n) for n in (1, 64, 8, 16, 2, 32, 4)],
}
"""The ends first: what the time does not allow is left out from the end."""


def order() -> list[Case]:
    """Every case once, the first of each sweep before the second of any."""
    longest = max(len(cases) for cases in SWEEPS.values())
    turns = [cases[i] for i in range(longest) for cases in SWEEPS.values() if i < len(cases)]
    return list(dict.fromkeys(turns))


def measure(size: str, case: Case, steps: int) -> dict[str, Any]:
    """Milliseconds, useful TFLOP and memory of one case; an error is its result."""
    device, spec = torch.device("cuda", 0), drafter_spec(size, LAYERS)
    arguments = (1, case.tokens, case.anchors, VOCAB[size], case.documents)
    packs = [random_pack(*arguments, seed=i).to(device) for i in range(4)]
    features = torch.randn(1, case.tokens, 5 * spec.hidden_size, device=device, dtype=torch.bfloat16)
    options = argparse.Namespace(steps=steps, memory_budget=1.0, profile=False)
    found: dict[str, Any] = {**case._asdict(), "useful_tflop": useful_flop(spec, packs[0], VOCAB[size]) / 1e12}
    torch._dynamo.reset()  # a new shape is no recompile of the last
    try:
        found |= own(size, packs, features, options, num_layers=LAYERS)
    except RuntimeError as error:
        found["error"] = f"{type(error).__name__}: {str(error)[:300]}"
    gc.collect()
    torch.cuda.empty_cache()
    return found


def growth(cases: list[dict[str, Any]]) -> dict[str, float]:
    """Of forward and backward, whose work `useful_tflop` counts.

    >>> one, two = ({"useful_tflop": w, "forward_backward_ms": t} for w, t in ((1.0, 10.0), (4.0, 30.0)))
    >>> growth([two, one])
    {'worst_growth': 0.75, 'growth': 0.75}
    """
    done = sorted((c["useful_tflop"], c["forward_backward_ms"]) for c in cases if "forward_backward_ms" in c)
    if len(done) < 2:
        return {}
    ratio = lambda a, b: (b[1] / a[1]) / (b[0] / a[0])  # noqa: E731
    worst = max(ratio(a, b) for a, b in pairwise(done))
    return {"worst_growth": round(worst, 3), "growth": round(ratio(done[0], done[-1]), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="qwen3_8b", choices=sorted(VOCAB))
    parser.add_argument("--steps", type=int, default=6, help="timed steps of each case")
    parser.add_argument("--seconds", type=float, default=200.0, help="no case is begun afterwards")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    require_cuda("growth")
    result, end = ResultFile("growth", options.out), time.monotonic() + options.seconds
    result.add("layers", LAYERS)
    found: dict[Case, dict[str, Any]] = {}
    for case in order():
        if time.monotonic() > end:
            print(f"out of time after {len(found)} of {len(order())} cases", flush=True)
            break
        found[case] = measure(options.size, case, options.steps)
        shown = ("useful_tflop", "forward_backward_ms", "useful_tflops", "peak_gb", "first_step_s", "error")
        print(case, {key: found[case][key] for key in shown if key in found[case]}, flush=True)
        for name, cases in SWEEPS.items():
            done = [found[c] for c in cases if c in found]
            result.add(name, {"cases": done, **growth(done)})
    for name in SWEEPS:
        print(name, {key: result.found[name].get(key) for key in ("worst_growth", "growth")})


if __name__ == "__main__":
    main()
