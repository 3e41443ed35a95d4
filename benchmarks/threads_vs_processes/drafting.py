"""One drafter's loop in a cell, and the lines that it leaves behind."""

from __future__ import annotations

import json
import re
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.threads_vs_processes.workarounds import Workaround
from dfl_mp.model.shapes import PackTensors
from dfl_mp.train.step import TrainStep, compiled_graphs

PAUSE_S = 0.2
"""After a failed step, before the same pack is tried again."""


class Journal:
    """A JSON line per event, on disk at once: a cell that is killed has still said what it did."""

    def __init__(self, folder: Path, drafter: int) -> None:
        self._file = open(  # noqa: SIM115 - kept until the interpreter ends
            folder / f"drafter-{drafter}.jsonl", "a", buffering=1
        )
        self._drafter = drafter

    def write(self, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"drafter": self._drafter, "event": event, "time": time.time(), **fields}) + "\n")


@dataclass
class Quota:
    """All drafters of a cell, in whatever process, go on until the last one has done its steps, or time is over."""

    folder: Path
    drafters: int
    steps: int
    deadline: float
    """time.time()"""

    def met(self, drafter: int) -> None:
        (self.folder / f"done-{drafter}").touch()

    def over(self) -> bool:
        if time.time() > self.deadline:
            return True
        return all((self.folder / f"done-{i}").exists() for i in range(self.drafters))


class Drafting:
    """A drafter with its inputs on one device."""

    def __init__(self, step: TrainStep, inputs: list[tuple[Tensor, PackTensors]], journal: Journal) -> None:
        self.step, self.inputs, self.journal = step, inputs, journal
        self.reduced = torch.empty_like(step.vector)
        self.failures = 0

    def run(self, index: int, quota: Quota, workaround: Workaround, start: threading.Barrier | None = None) -> None:
        """Consumes packs in order, each until it succeeds; produces one line per attempt; ends with the quota."""
        if self.step.device.type == "cuda":
            torch.cuda.set_device(self.step.device)
        if start is not None:
            start.wait(60)
        done = 0
        while not quota.over():
            done += self.attempt(done, workaround.of_step(done))
            if done == quota.steps:
                quota.met(index)
        self.journal.write("end", graphs=compiled_graphs())

    def attempt(self, number: int, lock: AbstractContextManager[Any]) -> int:
        """Train on the pack of step `number`; returns 1, or 0 after a failure, with the weights as before."""
        features, pack = self.inputs[number % len(self.inputs)]
        try:
            with lock:
                self.step.accumulate(features, pack, 0)
                self.reduced.copy_(self.step.vector)
                result = self.step.apply(self.reduced, number)
        except Exception as error:
            self.journal.write("failed", step=number, error=short(error), graphs=compiled_graphs())
            self.failures += 1
            self.step.discard()
            time.sleep(PAUSE_S)
            return 0
        graphs = compiled_graphs()
        self.journal.write("step", step=number, loss=result.loss, tokens=result.tokens, graphs=graphs)
        return 1


def short(error: Exception) -> str:
    """Type and first line, without what differs from one occurrence to the next."""
    lines = str(error).strip().splitlines() or [""]
    line = next((x for x in lines if x.strip()), "")
    return f"{type(error).__name__}: {re.sub(r'0x[0-9a-f]+|[0-9]+', 'N', line)[:140]}"


def attention_kernels(drafting: Drafting) -> list[str]:
    """Names of the kernels of one more forward and backward that belong to attention; empty without CUDA."""
    if drafting.step.device.type != "cuda":
        return []
    torch.cuda.set_device(drafting.step.device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        drafting.step.accumulate(*drafting.inputs[0], 0)
        torch.cuda.synchronize()
    names = {event.key for event in profile.key_averages()}
    telling = ("flex_attention", "softmax", "fmha", "flash", "attention")
    return sorted(name[:80] for name in names if any(word in name.lower() for word in telling))
