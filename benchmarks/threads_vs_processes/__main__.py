"""Run the cells of one size and write the result file after each wave of them.

python -m benchmarks.threads_vs_processes --size small --gpus 1 --seconds 300 --at-once 8
python -m benchmarks.threads_vs_processes --device cpu --size tiny --seconds 900 --cells "alone,threads,processes"

The cells of a wave start and compile beside each other; their timed steps come one cell after another.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.threads_vs_processes.bench import Bench
from benchmarks.threads_vs_processes.cells import Cell, large_cells, small_cells, waves
from benchmarks.threads_vs_processes.flags import seen_from_another_thread
from benchmarks.threads_vs_processes.results import ResultFile
from benchmarks.threads_vs_processes.sizes import SIZES


def cells_at_once() -> int:
    """One for two cores: a compile is one thread and helpers that mostly wait."""
    return max(1, min(8, (os.cpu_count() or 1) // 2))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--gpus", type=int, choices=[1, 2], default=1, help="drafters share them in turn")
    parser.add_argument("--seconds", type=float, default=300, help="no wave is begun afterwards")
    parser.add_argument(
        "--at-once", type=int, default=1, help="cells that start beside each other; they are timed alone"
    )
    parser.add_argument("--start-seconds", type=float, help="for a wave's compiles and warm-up; default by size")
    parser.add_argument("--steps", type=int, help="of the long cells, each drafter")
    parser.add_argument("--short", type=int, default=100, help="steps of all other cells, each drafter")
    parser.add_argument("--cells", help="names of cells, separated by commas; default all")
    parser.add_argument(
        "--backend", help="of torch.compile; default inductor, on a CPU aot_eager, which traces the same"
    )
    parser.add_argument("--out", type=Path, help="result file; a run of another size or machine is added to it")
    args = parser.parse_args(arguments)
    args.backend = args.backend or ("inductor" if args.device == "cuda" else "aot_eager")
    return args


def chosen(args: argparse.Namespace) -> list[Cell]:
    cells = large_cells(args.steps or 50) if args.size == "qwen3_8b" else small_cells(args.steps or 500, args.short)
    if args.cells:
        wanted = [name.strip() for name in args.cells.split(",")]
        unknown = set(wanted) - {cell.name for cell in cells}
        if unknown:
            raise SystemExit(f"--cells: unknown {sorted(unknown)}; there are {[cell.name for cell in cells]}")
        cells = [cell for cell in cells if cell.name in wanted]
    left = {cell.kin for cell in cells if cell.how == "alone" and cell.cache == "cold"}
    for cell in cells:
        if cell.cache == "warm" and cell.kin not in left:
            raise SystemExit(f"--cells: {cell.name!r} needs the cache that 'alone' leaves; name both")
    return cells


def line(cell: dict[str, Any]) -> str:
    first = max(cell["first_step_s"], default=None)
    rate = f"{cell['tokens_per_s']:,} tokens/s" if cell["tokens_per_s"] else "no rate"
    rate += f" beside {cell['beside']} others" if cell["beside"] else ""
    text = f"{cell['name']}: {cell['steps']} steps, {cell['failed_steps']} failed, {rate}, first steps by {first} s"
    for error, count in cell["errors"].items():
        text += f"\n    {count} x {error}"
    text += "".join(f"\n    broken: {error}" for error in cell["broken"])
    return text + ("\n    hangs" if cell["hangs"] or cell["unfinished_threads"] else "")


def run(args: argparse.Namespace, file: ResultFile, root: Path) -> None:
    began, bench = time.time(), Bench(args, root)
    for wave in waves(chosen(args), args.at_once):
        if time.time() - began > args.seconds:
            print(f"out of time before {wave[0].name!r} and what follows", flush=True)
            return
        print(f"[{time.time() - began:5.0f} s] {len(wave)} at once: {[cell.name for cell in wave]}", flush=True)
        results, cut = bench.run(wave)
        for result in results:
            file.add(result)
            print(f"[{time.time() - began:5.0f} s] {line(result)}", flush=True)
        if cut is not None:
            raise cut


def main() -> None:
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    file = ResultFile.open(args, seen_from_another_thread(), torch.__version__)
    root = Path(tempfile.mkdtemp(prefix="threads-vs-processes-"))
    try:
        run(args, file, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({"file": str(file.path), "processes": file.content["processes"]}))


if __name__ == "__main__":
    main()
