"""Waves of cells of one size on one set of GPUs, each cell's result, and the lone drafters' losses to compare with."""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.threads_vs_processes.cells import FACTORS, Cell
from benchmarks.threads_vs_processes.results import gpu_names
from benchmarks.threads_vs_processes.sizes import SIZES
from benchmarks.threads_vs_processes.summary import losses_of, read_journals, summarise
from benchmarks.threads_vs_processes.watch import Launch
from benchmarks.threads_vs_processes.wave import Wave
from benchmarks.threads_vs_processes.worker import Job

DRAFTERS = 3
MOST_COMPILE_THREADS = 8


class Bench:
    def __init__(self, args: argparse.Namespace, root: Path) -> None:
        self.args, self.root = args, root
        self.gpus = visible_gpus(args.gpus) if args.device == "cuda" else []
        self.reference: dict[tuple[str, str], list[float]] = {}
        self.cells_run = 0

    def run(self, cells: Sequence[Cell]) -> tuple[list[dict[str, Any]], BaseException | None]:
        """One wave; results of all its cells, and what cut it short, if something did."""
        began, size = time.time(), SIZES[self.args.size]
        start_by, turn_s = began + (self.args.start_seconds or size.start_s), size.turn_s
        launches = [self._launch(cell, start_by, turn_s, len(cells)) for cell in cells]
        wave = Wave(launches, start_by, turn_s)
        cut: BaseException | None = None
        try:
            wave.run()
        except (SystemExit, KeyboardInterrupt) as error:
            cut = error
        journals = [read_journals(launch.gate.folder) for launch in launches]
        for cell, found in zip(cells, journals, strict=True):
            if cell.how == "alone" and cell.kin not in self.reference and found:
                self.reference[cell.kin] = losses_of(found[0])
        results = [
            self._result(cell, launch, began, found)
            for cell, launch, found in zip(cells, launches, journals, strict=True)
        ]
        for i, result in enumerate(results):
            result |= {"at_once": len(cells), "beside": wave.beside[i], "cut_off": not wave.turn_taken[i]}
            shutil.rmtree(launches[i].gate.folder)
        return results, cut

    def _result(self, cell: Cell, launch: Launch, began: float, journals: dict[int, Any]) -> dict[str, Any]:
        reference = self.reference.get(cell.kin) or self.reference.get((cell.lengths, "off"))
        return {
            "name": cell.name,
            **{factor: getattr(cell, factor) for factor in ("how", *FACTORS)},
            "hangs": launch.hangs,
            **summarise(journals, began, reference, apart=cell.how == "processes"),
            "memory": launch.memory.as_dict(),
        }

    def _launch(self, cell: Cell, start_by: float, turn_s: float, at_once: int) -> Launch:
        number, self.cells_run = self.cells_run, self.cells_run + 1
        folder = self.root / f"cell-{number}"
        folder.mkdir()
        total = 1 if cell.how == "alone" else DRAFTERS
        apart = [(i,) for i in range(total)] if cell.how == "processes" else [tuple(range(total))]
        given = self.args.size, str(folder)
        jobs = [Job(cell, *given, d, total, self.args.device, self.args.backend, start_by, turn_s) for d in apart]
        return Launch(jobs, self._cache(cell, number), self.gpus, compile_threads(len(jobs) * at_once))

    def _cache(self, cell: Cell, number: int) -> Path:
        """The lone drafter's cold cache is kept: it is the warm one of those that compile the same."""
        kept = self.root / f"cache-{'-'.join(cell.kin)}"
        if cell.cache == "warm" or (cell.how == "alone" and not kept.exists()):
            kept.mkdir(exist_ok=True)
            return kept
        fresh = self.root / f"cache-of-cell-{number}"
        fresh.mkdir()
        return fresh


def compile_threads(interpreters: int) -> int:
    """Helpers of each, two for a core: they wait for their interpreter most of the time.

    >>> compile_threads(10**6)
    2
    """
    return max(2, min(MOST_COMPILE_THREADS, 2 * (os.cpu_count() or 1) // interpreters))


def visible_gpus(count: int) -> list[str]:
    """Names for CUDA_VISIBLE_DEVICES, the user's own mask honoured."""
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = mask.split(",") if mask else [str(i) for i in range(len(gpu_names()))]
    if len(names) < count:
        raise SystemExit(f"--gpus {count}: only {len(names)} to be seen")
    return names[:count]
