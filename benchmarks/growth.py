"""How a step's time grows with the length of its rows, its anchors and its documents, beside the work it has to do.

    python -m benchmarks.growth --seconds 150
    python -m benchmarks.growth --size tiny --shrink 32      # without a GPU: that it works, nothing about speed

One layer of the size's width and its whole vocabulary: what grows is the same, and a shape compiles in seconds. A
case's price is milliseconds of forward and backward per useful TFLOP (`useful_parts` in `benchmarks/shapes.py`); a step
that is linear in its useful work has one price. More documents in a row see less of it: there the work falls, and the
time has to fall with it.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy
import torch

from benchmarks.results_file import ResultFile, require_cuda
from benchmarks.shapes import VOCAB, drafter_spec, random_pack, useful_parts
from benchmarks.step import own

LAYERS = 1
LINEAR = 1.05
"""A price may rise by so much."""
KINDS = ("products", "head", "attention")


class Case(NamedTuple):
    """One row of so many tokens, anchors and equally long documents."""

    tokens: int
    anchors: int
    documents: int = 1


class Sweep(NamedTuple):
    """The ends first: what the time does not allow is left out from the end."""

    swept: str
    cases: tuple[Case, ...]


HARDLY_ANY = Case(128, 8)
"""Launches, reading the weights, adding the gradients: what each case costs whatever its work."""
FLOOR = 2.0
"""A case that takes less than so many times the time of HARDLY_ANY is not judged."""
LENGTHS = (1024, 32768, 8192, 4096, 16384, 2048)
SWEEPS = {
    "row_tokens": Sweep("tokens", tuple(Case(n, 512) for n in LENGTHS)),
    "row_tokens_and_anchors": Sweep("tokens", tuple(Case(n, n // 4) for n in LENGTHS)),
    "anchors": Sweep("anchors", tuple(Case(8192, n) for n in (64, 2048, 512, 128, 256, 1024))),
    "documents": Sweep("documents", tuple(Case(8192, 512, n) for n in (1, 64, 8, 2, 16, 4, 32))),
}


def shrunk(sweeps: Mapping[str, Sweep], by: int) -> dict[str, Sweep]:
    """Rows and anchors divided.

    >>> shrunk({"anchors": SWEEPS["anchors"]}, 64)["anchors"].cases[:2]
    (Case(tokens=128, anchors=1, documents=1), Case(tokens=128, anchors=32, documents=1))
    """
    return {
        name: Sweep(swept, tuple(Case(c.tokens // by, max(1, c.anchors // by), c.documents) for c in cases))
        for name, (swept, cases) in sweeps.items()
    }


def order(sweeps: Iterable[Sweep]) -> list[Case]:
    """Every case once, the first of each sweep before the second of any.

    >>> order([Sweep("tokens", (Case(8, 2), Case(64, 2))), Sweep("anchors", (Case(8, 1), Case(8, 2)))])[1:]
    [Case(tokens=8, anchors=1, documents=1), Case(tokens=64, anchors=2, documents=1)]
    """
    lists = [sweep.cases for sweep in sweeps]
    turns = [cases[i] for i in range(max(map(len, lists))) for cases in lists if i < len(cases)]
    return list(dict.fromkeys(turns))


def measure_case(size: str, case: Case, steps: int) -> dict[str, Any]:
    """Milliseconds, useful TFLOP and memory of one case; an error is its result."""
    cuda = torch.cuda.is_available()
    device, spec = torch.device("cuda", 0) if cuda else torch.device("cpu"), drafter_spec(size, LAYERS)
    settings = {} if cuda else {"dtype": "float32"}  # bfloat16 products are slow on many CPUs
    options = argparse.Namespace(steps=steps, memory_budget=1.0, profile=False)
    found: dict[str, Any] = case._asdict()
    try:
        packs = [random_pack(1, *case[:2], VOCAB[size], case.documents, seed=i) for i in range(4)]
        parts = [useful_parts(spec, pack, VOCAB[size]) for pack in packs]
        work = {kind: fmean(part[kind] for part in parts) / 1e12 for kind in KINDS}
        found |= {"tflop": work, "useful_tflop": sum(work.values())}
        features = torch.randn(
            1, case.tokens, spec.num_features * spec.hidden_size, device=device, dtype=torch.bfloat16
        )
        found |= own(size, [pack.to(device) for pack in packs], features, options, num_layers=LAYERS, **settings)
        found["useful_tflops"] = round(found["useful_tflop"] / found["forward_backward_ms"] * 1e3, 1)
    except Exception as error:  # of the compilers, too
        found["error"] = f"{type(error).__name__}: {str(error)[:300]}"
    if cuda:
        torch._dynamo.reset()  # else the ninth shape of the drafter is refused, and the last one's memory held
    gc.collect()
    torch.cuda.empty_cache()
    return found


def price(case: Mapping[str, Any]) -> float:
    """Milliseconds per useful TFLOP."""
    return float(case["forward_backward_ms"] / case["useful_tflop"])


def growth(swept: str, cases: Iterable[Mapping[str, Any]], fixed_ms: float) -> dict[str, Any]:
    """How the price changes from a measured case to the next, and from the first to the last, in the order of what is
    swept: the time ratio over the ratio of useful work. `judged` are the values above the floor, which alone count.

    >>> one, four = ({"tokens": w, "useful_tflop": w, "forward_backward_ms": t} for w, t in ((1, 10), (4, 30)))
    >>> found = growth("tokens", [four, one], fixed_ms=2.0)
    >>> found["worst_growth"], found["worst_at"], found["growth"], found["linear"]
    (0.75, [1, 4], 0.75, True)
    """
    measured = sorted((c for c in cases if "forward_backward_ms" in c), key=lambda c: c[swept])
    judged = [c for c in measured if c["forward_backward_ms"] >= FLOOR * fixed_ms]
    found: dict[str, Any] = {"judged": [c[swept] for c in judged]}
    if len(judged) < 2:
        return found
    worst, *at = max((price(b) / price(a), a[swept], b[swept]) for a, b in pairwise(judged))
    whole = price(judged[-1]) / price(judged[0])
    found |= {"worst_growth": round(worst, 3), "worst_at": at, "growth": round(whole, 3)}
    return found | {"linear": max(worst, whole) <= LINEAR}


def linear_law(cases: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Fixed milliseconds and a rate for each kind of work, of least squares of the relative errors over all cases.

    Where a price rises because more of the work is of a slower kind, this law still holds: `worst_over` is the largest
    time over what it says. Empty for fewer than six cases.
    """
    measured = [c for c in cases if "forward_backward_ms" in c]
    if len(measured) < len(KINDS) + 3:
        return {}
    times = numpy.array([c["forward_backward_ms"] for c in measured])
    terms = numpy.array([[1.0, *(c["tflop"][kind] for kind in KINDS)] for c in measured])
    fixed, *prices = numpy.linalg.lstsq(terms / times[:, None], numpy.ones(len(times)), rcond=None)[0]
    over = times / (terms @ numpy.array([fixed, *prices]))
    rates = {
        f"{kind}_tflops": round(1e3 / float(p), 1) if p > 0 else None for kind, p in zip(KINDS, prices, strict=True)
    }
    return {"fixed_ms": round(float(fixed), 2), **rates, "worst_over": round(float(over.max()), 3)}


def run(sweeps: Mapping[str, Sweep], options: argparse.Namespace, result: ResultFile) -> None:
    """Measure in `order`, within `options.seconds`; the result is written after each case."""
    began = time.monotonic()
    result.add("layers", LAYERS)
    hardly_any = shrunk({"": Sweep("", (HARDLY_ANY,))}, options.shrink)[""].cases[0]
    todo, found, last = [hardly_any, *order(sweeps.values())], dict[Case, dict[str, Any]](), 0.0
    for case in todo:
        at = time.monotonic()
        if at - began + last > options.seconds:
            break
        found[case] = measure_case(options.size, case, options.steps)
        last = time.monotonic() - at
        shown = ("useful_tflop", "forward_backward_ms", "useful_tflops", "peak_gb", "first_step_s", "error")
        print(f"{at - began:.0f} s:", case, {k: found[case][k] for k in shown if k in found[case]}, flush=True)
        write(sweeps, found, hardly_any, result)
    left_out = [list(case) for case in todo if case not in found]
    result.add("left_out", left_out)
    print(f"{len(found)} of {len(todo)} cases in {time.monotonic() - began:.0f} s; left out: {left_out}", flush=True)


def write(sweeps: Mapping[str, Sweep], found: dict[Case, dict[str, Any]], fixed: Case, result: ResultFile) -> None:
    fixed_ms = found[fixed].get("forward_backward_ms", 0.0)
    result.add("hardly_any", found[fixed])
    result.add("not_judged_below_ms", round(FLOOR * fixed_ms, 2))
    for name, (swept, cases) in sweeps.items():
        done = [found[case] for case in sorted(cases) if case in found]
        result.add(name, {"swept": swept, **growth(swept, done, fixed_ms), "cases": done})
    result.add("linear_law", linear_law(found.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="qwen3_8b", choices=sorted(VOCAB))
    parser.add_argument("--shrink", type=int, default=1, help="divide rows and anchors")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each case, at least 3")
    parser.add_argument("--seconds", type=float, default=150.0, help="no case is begun that would take longer")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.steps < 3:
        parser.error("--steps: at least 3, the first two are not counted")
    if options.size != "tiny":
        require_cuda("growth")
    result = ResultFile("growth", options.out)
    run(shrunk(SWEEPS, options.shrink), options, result)
    print(f"not judged below {result.found['not_judged_below_ms']} ms; linear law: {result.found['linear_law']}")
    for name in SWEEPS:
        print(name, {k: v for k, v in result.found[name].items() if k not in ("swept", "cases")}, flush=True)


if __name__ == "__main__":
    main()
