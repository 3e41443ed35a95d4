"""The sum of a step's gradients over N drafters, out of place, as the drafters do it: milliseconds, bus GB/s, share.

    python -m benchmarks.allreduce                       # Qwen3-8B and 27B shapes, every number of GPUs from 2
    CUDA_VISIBLE_DEVICES= python -m benchmarks.allreduce --size tiny

Each drafter is a process that sees one GPU, in a `GradientGroup` of its own; the vector holds gradients, statistics and
pack counters. `bus_gb_per_s` is 2·(N−1)/N · bytes / seconds, what each link carries in a ring. `exposed_share` is the
reduce as a share of an optimizer step of 24 packs, ⌈24/N⌉ of which each drafter computes: nothing runs beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.results_file import ResultFile, gpus, newest
from benchmarks.shapes import SIZES
from launcher.child import ALWAYS

PACKS = 24
PACK_MS = {"qwen3_8b": 127.2, "27b": 220.0, "tiny": 10.0}
"""Of one pack's forward and backward where no result of `benchmarks.step` says it: 8B as measured, 27B by its FLOPs."""
OPTIMIZER_MS = {"qwen3_8b": 12.6, "27b": 21.0, "tiny": 1.0}
FORM_WITHIN_S = 60.0


def worker(rank: int, size: str, num: int, repeats: int, folder: Path) -> None:
    """One drafter: sums `repeats` times; rank 0 prints what it found as JSON."""
    import torch

    from benchmarks.shapes import drafter_spec
    from dfl_mp.model.drafter import Drafter
    from dfl_mp.roles.common import device
    from dfl_mp.train.group import GradientGroup
    from dfl_mp.train.parameters import STATISTICS

    on = device()
    with torch.device("meta"):
        count = sum(p.numel() for p in Drafter(drafter_spec(size)).parameters()) + STATISTICS + PACKS
    vector = torch.ones(count, device=on)
    members = tuple(f"drafter-{i}.1" for i in range(num))
    group = GradientGroup(folder, members[rank], on)
    began = time.monotonic()
    group.form(1, members, FORM_WITHIN_S)
    formed = time.monotonic() - began
    times, copies = [], []
    for _ in range(repeats + 2):
        began = time.perf_counter()
        reduced = group.all_reduce(vector)
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
        reduced.copy_(vector)
        if on.type == "cuda":
            torch.cuda.synchronize(on)
        copies.append(time.perf_counter() - began)
    reduced = group.all_reduce(vector)
    right = bool((reduced == float(num)).all()) and bool((vector == 1.0).all())
    if rank == 0:
        both = [statistics.median(t[2:]) * 1e3 for t in (times, copies)]
        found = {"elements": count, "ms": round(both[0], 2), "copy_ms": round(both[1], 2), "form_s": round(formed, 2)}
        found |= {"slowest_ms": round(max(times[2:]) * 1e3, 2), "sum_is_right": right}
        print(json.dumps(found), flush=True)


def measure(size: str, num: int, options: argparse.Namespace) -> dict[str, Any]:
    """Start the drafters, wait for them, work out rates. What went wrong is `error`."""
    with tempfile.TemporaryDirectory(prefix="dfl-bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.allreduce", "--size", size, "--repeats", str(options.repeats)]
        workers = [
            subprocess.Popen(
                [*command, "--rank", str(rank), "--of", str(num), "--folder", folder],
                env=dict(os.environ) | ALWAYS | ({"CUDA_VISIBLE_DEVICES": visible()[rank]} if gpus() else {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(num)
        ]
        until = time.monotonic() + options.seconds
        said = []
        try:
            for process in workers:
                said.append(process.communicate(timeout=max(0.1, until - time.monotonic())))
        except subprocess.TimeoutExpired:
            return {"size": size, "drafters": num, "error": f"not done after {options.seconds:.0f} s"}
        finally:
            for process in workers:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
    if any(process.returncode for process in workers):
        return {"size": size, "drafters": num, "error": next(err for _, err in said if err)[-400:]}
    found = json.loads(said[0][0].splitlines()[-1])
    return {"size": size, "drafters": num} | found | rates(found, size, num)


def rates(found: dict[str, Any], size: str, num: int) -> dict[str, Any]:
    """Bus rate and the share of a step.

    >>> rates({"elements": 10**9, "ms": 20.0}, "qwen3_8b", 2)["bus_gb_per_s"]
    200.0
    """
    bus = 2 * (num - 1) / num * found["elements"] * 4 / found["ms"] / 1e6
    pack, optimizer = step_ms(size)
    step = -(-PACKS // num) * pack + optimizer + found["ms"]
    return {
        "gb": round(found["elements"] * 4 / 1e9, 3),
        "bus_gb_per_s": round(bus, 1),
        "pack_ms": pack,
        "step_ms": round(step, 1),
        "exposed_share": round(found["ms"] / step, 4),
    }


def step_ms(size: str) -> tuple[float, float]:
    """(a pack, an optimizer step) from the newest result of `benchmarks.step` at 4096 tokens and 512 anchors."""
    for case in (newest("step") or {}).get("cases", []):
        own = case.get("own", case)
        if (case.get("size"), case.get("rows"), case.get("tokens")) == (size, 1, 4096) and "forward_backward_ms" in own:
            return own["forward_backward_ms"], own["optimizer_ms"]
    return PACK_MS[size], OPTIMIZER_MS[size]


def visible() -> list[str]:
    """What CUDA_VISIBLE_DEVICES is to say for each GPU that this process may use."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(i) for i in range(len(gpus()))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", choices=sorted(SIZES))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0, help="for one number of drafters")
    parser.add_argument("--out", type=Path)
    for option in ("--rank", "--of"):
        parser.add_argument(option, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = options.size or (["qwen3_8b", "27b"] if gpus() else ["tiny"])
    if options.rank is not None:
        worker(options.rank, sizes[0], options.of, options.repeats, options.folder)
        return
    most = len(visible()) if gpus() else 2
    if most < 2:
        print("allreduce: needs two GPUs, one is here", flush=True)
        return
    result = ResultFile("allreduce", options.out)
    for size in sizes:
        for num in range(2, most + 1):
            result.append("cases", found := measure(size, num, options))
            print(found, flush=True)


if __name__ == "__main__":
    main()
