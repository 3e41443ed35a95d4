"""One drafter's training step with random weights: time, useful TFLOP/s, peak memory, recompiles, kernels.

    python -m benchmarks.step --size qwen3_8b --rows 1 --tokens 4096 --anchors 512 --steps 20

Prints one line of JSON a case, with the rate of a plain bfloat16 product beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from benchmarks.shapes import VOCAB, random_pack, random_step, useful_flop
from dfl_mp.train.step import compiled_graphs


def product_tflops(device: torch.device, n: int = 8192) -> float:
    """TFLOP/s of a plain bfloat16 product, the ceiling that the step is held against."""
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    times = [timed(lambda: a @ b) for _ in range(12)]
    return 2 * n**3 / statistics.median(times[2:]) / 1e12


def timed(work) -> float:  # type: ignore[no-untyped-def]
    """Seconds of the work on the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def kernels(work) -> list[tuple[str, float]]:  # type: ignore[no-untyped-def]
    """(name, milliseconds) of the kernels that take longest in the work."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    rows = sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)
    return [(e.key[:90], round(e.self_device_time_total / 1e3, 2)) for e in rows[:14]]


def measure(size: str, rows: int, tokens: int, anchors: int, steps: int) -> dict[str, object]:
    device = torch.device("cuda", 0)
    torch.cuda.reset_peak_memory_stats()
    step = random_step(size, device)
    packs = [random_pack(rows, tokens, anchors, VOCAB[size], documents=4, seed=i).to(device) for i in range(4)]
    width = step.spec.num_features * step.spec.hidden_size
    features = torch.randn(rows, tokens, width, device=device, dtype=torch.bfloat16)
    began = time.monotonic()
    step.accumulate(features, packs[0], 0)
    step.apply(step.vector.clone(), 0)
    torch.cuda.synchronize()
    cold, graphs = time.monotonic() - began, compiled_graphs()
    reduced = torch.empty_like(step.vector)
    passes, updates, losses = [], [], []
    torch.cuda.reset_peak_memory_stats()
    for i in range(1, steps + 1):
        passes.append(timed(lambda i=i: step.accumulate(features, packs[i % 4], 0)))
        reduced.copy_(step.vector)
        updates.append(timed(lambda i=i: losses.append(step.apply(reduced, i).loss)))
    names = kernels(lambda: step.accumulate(features, packs[0], 0))
    median = statistics.median(passes[2:])
    flop = useful_flop(step.spec, packs[0], VOCAB[size])
    return {
        "size": size,
        "rows": rows,
        "tokens": tokens,
        "anchors": anchors,
        "steps": steps,
        "forward_backward_ms": round(median * 1e3, 1),
        "optimizer_ms": round(statistics.median(updates[2:]) * 1e3, 1),
        "useful_tflops": round(flop / median / 1e12, 1),
        "product_tflops": round(product_tflops(device), 1),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
        "cold_s": round(cold, 1),
        "recompiles": compiled_graphs() - graphs,
        "loss": [round(losses[0], 3), round(losses[-1], 3)],
        "kernels": names,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="qwen3_8b", choices=sorted(VOCAB))
    for name, default in (("rows", 1), ("tokens", 4096), ("anchors", 512), ("steps", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    print(json.dumps(measure(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
