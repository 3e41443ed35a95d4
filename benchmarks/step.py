"""One drafter's training step with random weights, beside SpecForge's on the same work: time, useful TFLOP/s, memory.

    python -m benchmarks.step --case 1x2048x512 --case 4x4096x512 --specforge --out step.json

A case is rows × tokens × anchors. Rows are one document each, because SpecForge knows no packed rows; `--documents`
packs them in runs without it. `useful_flop` in `benchmarks/shapes.py` says what is counted. Every case is written as
soon as it is measured.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.results_file import ResultFile, require_cuda
from benchmarks.shapes import VOCAB, random_pack, random_step, useful_flop
from dfl_mp.model.shapes import PackTensors
from dfl_mp.train.step import TrainStep, compiled_graphs

Work = Callable[[], Any]
FIELDS = ("rows", "tokens", "anchors")


def product_tflops(device: torch.device, n: int = 8192) -> float:
    """TFLOP/s of a plain bfloat16 product, the ceiling that the step is held against."""
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    times = [timed(lambda: a @ b) for _ in range(12)]
    return 2 * n**3 / statistics.median(times[2:]) / 1e12


def wait() -> None:
    """For the device; without CUDA there is nothing to wait for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(work: Work) -> float:
    """Seconds of the work on the device."""
    if not torch.cuda.is_available():
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def kernels(work: Work, most: int = 40) -> list[tuple[str, float, int]]:
    """(name, milliseconds, launches) of the kernels that take longest in the work, and of all."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    rows = sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)
    whole = ("all", round(sum(e.self_device_time_total for e in rows) / 1e3, 2), sum(e.count for e in rows))
    return [whole] + [(e.key[:90], round(e.self_device_time_total / 1e3, 2), e.count) for e in rows[:most]]


def measure(accumulate: Callable[[int], Any], apply: Callable[[int], Any], steps: int) -> dict[str, Any]:
    """Medians over the steps after two, each waited for; the first, which compiles, is timed apart.

    `running_ms` is a step's share of as many steps in a row, without a wait that is not the step's own.
    """
    began = time.monotonic()
    accumulate(0), apply(0)
    wait()
    cold, graphs = time.monotonic() - began, compiled_graphs()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    passes, updates = [], []
    for i in range(1, steps + 1):
        passes.append(timed(lambda i=i: accumulate(i)))
        updates.append(timed(lambda i=i: apply(i)))
    wait()
    began = time.monotonic()
    for i in range(steps):
        accumulate(i), apply(steps + 1 + i)
    wait()
    running = (time.monotonic() - began) / steps
    both = [statistics.median(times[2:]) * 1e3 for times in (passes, updates)]
    return {
        "forward_backward_ms": round(both[0], 1),
        "optimizer_ms": round(both[1], 1),
        "step_ms": round(sum(both), 1),
        "running_ms": round(running * 1e3, 1),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
        "first_step_s": round(cold, 1),
        "recompiles": compiled_graphs() - graphs,
    }


def own(
    size: str, packs: list[PackTensors], features: torch.Tensor, options: argparse.Namespace, **settings: Any
) -> dict[str, Any]:
    layers = settings.pop("layers", False)
    step = random_step(size, features.device, activation_memory_budget=options.memory_budget, **settings)
    if layers:
        compile_layers(step)
    losses: list[float] = []

    def apply(i: int) -> None:
        losses.append(step.apply(step.vector, i).loss)

    def accumulate(i: int) -> None:
        step.accumulate(features, packs[i % len(packs)], 0)

    found = measure(accumulate, apply, options.steps)
    useful = useful_flop(step.spec, packs[0], VOCAB[size]) / found["forward_backward_ms"] / 1e9
    found |= {
        "attention": step.attention,
        "useful_tflops": round(useful, 1),
        "loss": [round(losses[0], 3), round(losses[-1], 3)],
    }
    if options.profile:
        found["kernels"] = kernels(lambda: (accumulate(0), apply(2 * options.steps + 1)))
    return found


def compile_layers(step: TrainStep) -> None:
    """Each layer for itself, not the drafter as a whole."""
    for layer in step.drafter.layers:
        layer.compile(dynamic=False, fullgraph=True)
    step._forward = step.drafter.forward


def specforge(
    size: str, packs: list[PackTensors], features: torch.Tensor, options: argparse.Namespace
) -> dict[str, Any]:
    from benchmarks.specforge import SpecForgeStep

    step = SpecForgeStep(size, packs[0].anchor_BN.shape[1], features.device)
    found = measure(lambda i: step.accumulate(features, packs[i % len(packs)]), lambda i: step.apply(), options.steps)
    if options.profile:
        found["kernels"] = kernels(lambda: (step.accumulate(features, packs[0]), step.apply()))
    return found


def run_case(case: str, options: argparse.Namespace) -> dict[str, Any]:
    """One case, ours and SpecForge's one after the other on the same packs; an error of one is its result."""
    rows, tokens, anchors = (int(n) for n in case.split("x"))
    device = torch.device("cuda", 0)
    width = 5 * random_width(options.size)
    features = torch.randn(rows, tokens, width, device=device, dtype=torch.bfloat16)
    packs = [
        random_pack(rows, tokens, anchors, VOCAB[options.size], options.documents, seed=i).to(device) for i in range(4)
    ]
    found: dict[str, Any] = dict(zip(FIELDS, (rows, tokens, anchors), strict=True))
    found |= {"size": options.size, "documents_per_row": options.documents, "steps": options.steps}
    sides: dict[str, Callable[..., dict[str, Any]]] = {"own": own}
    if options.flex_too:
        sides["own_flex"] = partial(own, attention="flex")
    if options.float8_too:
        sides["own_float8"] = partial(own, float8=True)
    if options.layers_too:
        sides["own_layers"] = partial(own, layers=True)
    if options.specforge:
        sides["specforge"] = specforge
    for name, side in sides.items():
        try:
            found[name] = side(options.size, packs, features, options)
        except (RuntimeError, ImportError) as error:
            found[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        gc.collect()
        torch.cuda.empty_cache()
        print(case, name, {k: v for k, v in found[name].items() if k != "kernels"}, flush=True)
    for side in sides:
        if side != "specforge" and all("step_ms" in found.get(name, {}) for name in (side, "specforge")):
            ratios = ratios_to(found["specforge"], found[side])
            found |= ratios if side == "own" else {f"{side}_{name}": ratio for name, ratio in ratios.items()}
    return found


def ratios_to(other: dict[str, Any], own: dict[str, Any]) -> dict[str, float]:
    ratios = {name: round(own[name] / other[name], 3) for name in ("step_ms", "running_ms", "peak_gb")}
    return {"ratio_to_specforge": ratios["step_ms"], **{f"ratio_{name}": ratio for name, ratio in ratios.items()}}


def random_width(size: str) -> int:
    from benchmarks.shapes import SIZES

    return SIZES[size]["hidden_size"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="qwen3_8b", choices=sorted(VOCAB))
    parser.add_argument("--case", action="append", metavar="ROWSxTOKENSxANCHORS")
    parser.add_argument("--documents", type=int, default=1, help="documents in a row")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--specforge", action="store_true", help="measure SpecForge beside")
    parser.add_argument("--flex-too", action="store_true", help="measure flex_attention beside FlashAttention-4")
    parser.add_argument("--float8-too", action="store_true", help="measure drafter.float8 beside")
    parser.add_argument("--layers-too", action="store_true", help="measure the layers compiled one by one beside")
    parser.add_argument("--memory-budget", type=float, default=1.0, help="drafter.activation_memory_budget")
    parser.add_argument("--profile", action="store_true", help="keep each case's longest kernels")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    require_cuda("step")
    result = ResultFile("step", options.out)
    result.add("product_tflops", round(product_tflops(torch.device("cuda", 0)), 1))
    for case in options.case or ["1x2048x512", "4x4096x512"]:
        result.append("cases", run_case(case, options))
    ratios = [c["ratio_to_specforge"] for c in result.found["cases"] if "ratio_to_specforge" in c]
    if ratios:
        result.add("ratio_to_specforge", ratios[0])


if __name__ == "__main__":
    main()
