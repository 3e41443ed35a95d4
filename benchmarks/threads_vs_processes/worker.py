"""One fresh interpreter of a cell: a single drafter, or several as threads.

    python -m benchmarks.threads_vs_processes.worker '<JSON of Job>'

Leaves a journal per drafter in the cell's folder; ends by `os._exit`, so that a thread that hangs keeps nobody.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.threads_vs_processes.cells import Cell
from benchmarks.threads_vs_processes.drafting import WAVE_S, Drafting, Journal, Quota, attention_kernels, short
from benchmarks.threads_vs_processes.gate import Gate
from benchmarks.threads_vs_processes.sizes import SIZES, make_inputs, make_step
from benchmarks.threads_vs_processes.workarounds import Workaround, compile_forward


@dataclass(frozen=True)
class Job:
    cell: Cell
    size: str
    folder: str
    drafters: tuple[int, ...]
    """Numbers of those that live in this interpreter."""
    total: int
    device: str
    backend: str
    start_by: float
    """time.time() at which the warm-up ends."""
    turn_s: float
    """For the timed steps."""

    @property
    def gate(self) -> Gate:
        return Gate(Path(self.folder), self.total)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields | {"cell": Cell(**fields["cell"]), "drafters": tuple(fields["drafters"])})


def device_of(job: Job, place: int) -> torch.device:
    """Processes see one GPU each; threads take the visible ones in turn."""
    if job.device == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", place % torch.cuda.device_count())


def build(job: Job, place: int, journal: Journal) -> Drafting:
    size, device = SIZES[job.size], device_of(job, place)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    step = make_step(size, device)
    compile_forward(step, job.cell, job.backend)
    drafting = Drafting(step, make_inputs(size, job.cell.lengths, device), journal)
    journal.write("built")
    return drafting


def run(job: Job, journals: dict[int, Journal]) -> None:
    workaround = Workaround(job.cell)
    quota = Quota(job.gate, job.cell.steps, job.start_by, job.turn_s)
    drafters = [build(job, place, journals[i]) for place, i in enumerate(job.drafters)]
    hanging = 0
    if len(drafters) == 1:
        drafters[0].run(job.drafters[0], quota, workaround)
    else:
        start = threading.Barrier(len(drafters))
        pairs = zip(job.drafters, drafters, strict=True)
        threads = [threading.Thread(target=d.run, args=(i, quota, workaround, start), daemon=True) for i, d in pairs]
        for thread in threads:
            thread.start()
        hanging = join(threads, quota)
    first = job.drafters[0]
    job.gate.say("over", first)
    job.gate.wait(Gate.REPORT, time.time() + WAVE_S)
    if hanging:
        journals[first].write("unfinished", threads=hanging)
    else:
        report(drafters[0], journals[first])
    job.gate.say("reported", first)
    time.sleep(WAVE_S)  # with all its memory, which the benchmark measures as it ends this process


def join(threads: list[threading.Thread], quota: Quota) -> int:
    """How many hang."""
    while (alive := [thread for thread in threads if thread.is_alive()]) and not quota.late():
        alive[0].join(0.5)
    return len(alive)


def report(drafting: Drafting, journal: Journal) -> None:
    """What only the interpreter itself can say, after all its drafters have ended."""
    fields: dict[str, Any] = {"torch": torch.__version__}
    if torch.cuda.is_available() and drafting.step.device.type == "cuda":
        devices = range(torch.cuda.device_count())
        fields["gpu_peak_mb"] = sum(torch.cuda.max_memory_allocated(i) for i in devices) // 2**20
        fields["gpu_reserved_mb"] = sum(torch.cuda.max_memory_reserved(i) for i in devices) // 2**20
    journal.write("memory", **fields)
    try:
        journal.write("kernels", names=attention_kernels(drafting))
    except Exception as error:
        journal.write("kernels", names=[], error=short(error))


def main() -> None:
    job = Job.from_json(sys.argv[1])
    journals = {i: Journal(Path(job.folder), i) for i in job.drafters}
    try:
        if job.device == "cpu":
            torch.set_num_threads(1)
        run(job, journals)
    except Exception as error:
        journals[job.drafters[0]].write("broken", error=short(error))
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0 if sys.exc_info()[0] is None else 1)


if __name__ == "__main__":
    main()
