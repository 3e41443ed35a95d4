"""Run the cells of one size and write the result file after each.

python -m benchmarks.threads_vs_processes --size small --gpus 1 --seconds 300
python -m benchmarks.threads_vs_processes --device cpu --size tiny --seconds 900 --cells "alone,threads,processes"
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
from pathlib import Path
from typing import Any

import torch

from benchmarks.threads_vs_processes.cells import Cell, large_cells, small_cells
from benchmarks.threads_vs_processes.flags import seen_from_another_thread
from benchmarks.threads_vs_processes.results import ResultFile, gpu_names
from benchmarks.threads_vs_processes.sizes import SIZES
from benchmarks.threads_vs_processes.summary import losses_of, read_journals, summarise
from benchmarks.threads_vs_processes.watch import Launch
from benchmarks.threads_vs_processes.worker import Job

DRAFTERS = 3


class Bench:
    """Cells of one size on one set of GPUs, one after another, with the lone drafters' losses to compare with."""

    def __init__(self, args: argparse.Namespace, root: Path) -> None:
        self.args, self.root = args, root
        self.gpus = visible_gpus(args.gpus) if args.device == "cuda" else []
        self.reference: dict[tuple[str, str], list[float]] = {}

    def run(self, cell: Cell, number: int) -> dict[str, Any]:
        folder = self.root / f"cell-{number}"
        folder.mkdir()
        began = time.time()
        launch = Launch(self._jobs(cell, folder, began), self._cache(cell, number), self.gpus)
        killed, memory = launch.run()
        journals = read_journals(folder)
        reference = self.reference.get(cell.kin) or self.reference.get((cell.lengths, "off"))
        result = summarise(journals, began, reference)
        if cell.how == "alone" and cell.kin not in self.reference and journals:
            self.reference[cell.kin] = losses_of(journals[0])
        shutil.rmtree(folder)
        return {
            "name": cell.name,
            **{f: getattr(cell, f) for f in ("how", "workaround", "cache", "lengths", "checkpoint", "mask")},
            "killed": killed,
            "wall_s": round(time.time() - began, 1),
            **result,
            "memory": memory.as_dict(),
        }

    def _jobs(self, cell: Cell, folder: Path, began: float) -> list[Job]:
        total = 1 if cell.how == "alone" else DRAFTERS
        apart = [(i,) for i in range(total)] if cell.how == "processes" else [tuple(range(total))]
        deadline = began + (self.args.cell_seconds or SIZES[self.args.size].cell_s)
        return [
            Job(cell, self.args.size, str(folder), drafters, total, self.args.device, deadline, self.args.backend)
            for drafters in apart
        ]

    def _cache(self, cell: Cell, number: int) -> Path:
        """The lone drafter's cold cache is kept: it is the warm one of those that compile the same."""
        kept = self.root / f"cache-{'-'.join(cell.kin)}"
        if cell.cache == "warm" or (cell.how == "alone" and not kept.exists()):
            kept.mkdir(exist_ok=True)
            return kept
        fresh = self.root / f"cache-of-cell-{number}"
        fresh.mkdir()
        return fresh


def visible_gpus(count: int) -> list[str]:
    """Names for CUDA_VISIBLE_DEVICES, the user's own mask honoured."""
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = mask.split(",") if mask else [str(i) for i in range(len(gpu_names()))]
    if len(names) < count:
        raise SystemExit(f"--gpus {count}: only {len(names)} to be seen")
    return names[:count]


def chosen(args: argparse.Namespace) -> list[Cell]:
    cells = large_cells(args.steps or 50) if args.size == "qwen3_8b" else small_cells(args.steps or 500, args.short)
    if args.cells:
        wanted = [name.strip() for name in args.cells.split(",")]
        unknown = set(wanted) - {cell.name for cell in cells}
        if unknown:
            raise SystemExit(f"--cells: unknown {sorted(unknown)}; there are {[cell.name for cell in cells]}")
        cells = [cell for cell in cells if cell.name in wanted]
    return cells


def line(cell: dict[str, Any]) -> str:
    first = cell["first_step_s"]
    rate = f"{cell['tokens_per_s']:,} tokens/s" if cell["tokens_per_s"] else "no rate"
    text = f"{cell['name']}: {cell['steps']} steps, {cell['failed_steps']} failed, {rate}, first step {first} s"
    for error, count in cell["errors"].items():
        text += f"\n    {count} x {error}"
    return text + ("\n    killed" if cell["killed"] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--gpus", type=int, choices=[1, 2], default=1, help="drafters share them in turn")
    parser.add_argument("--seconds", type=float, default=300, help="no cell is begun afterwards")
    parser.add_argument("--cell-seconds", type=float, help="after which a cell stops by itself")
    parser.add_argument("--steps", type=int, help="of the long cells, each drafter")
    parser.add_argument("--short", type=int, default=40, help="steps of all other cells, each drafter")
    parser.add_argument("--cells", help="names of cells, separated by commas; default all")
    parser.add_argument(
        "--backend", help="of torch.compile; default inductor, on a CPU aot_eager, which traces the same"
    )
    parser.add_argument("--out", type=Path, help="result file; a run of another size or machine is added to it")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args.backend = args.backend or ("inductor" if args.device == "cuda" else "aot_eager")
    end = time.time() + args.seconds
    file = ResultFile.open(args, seen_from_another_thread(), torch.__version__)
    root = Path(tempfile.mkdtemp(prefix="threads-vs-processes-"))
    try:
        bench = Bench(args, root)
        for number, cell in enumerate(chosen(args)):
            if time.time() > end:
                print(f"out of time before {cell.name!r} and what follows", flush=True)
                break
            result = bench.run(cell, number)
            file.add(result)
            print(f"[{time.time() - end + args.seconds:5.0f} s] {line(result)}", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({"file": str(file.path), "processes": file.content["processes"]}))


if __name__ == "__main__":
    main()
