"""One drafter's loop in a cell, and the lines that it leaves behind."""

from __future__ import annotations

import json
import re
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.threads_vs_processes.gate import Gate
from benchmarks.threads_vs_processes.workarounds import Workaround
from dfl_mp.model.shapes import PackTensors
from dfl_mp.train.step import TrainStep, compiled_graphs

PAUSE_S = 0.2
"""After a failed step, before the same pack is tried again."""
WARM_STEPS = 4
"""Of every drafter before the gate: each length has been compiled by then."""
GIVE_UP_S = 20.0
"""Longer than the other drafters trace: what fails for so long without a break will always fail."""
LATE_S = 5.0
WAVE_S = 600.0
"""Longer than all cells of a wave take; a benchmark that lives ends its interpreters much earlier."""


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
    """All drafters of a cell, in whatever process, go on until the last one has done its steps, or time is over.

    So a drafter that has compiled trains while the others of its cell still trace.
    """

    gate: Gate
    steps: int
    """Of each drafter, after the warm-up."""
    start_by: float
    """time.time() at which the warm-up ends for all."""
    turn_s: float
    """From the opening of the gate to the end of the timed steps."""

    def late(self) -> bool:
        """Whether a drafter that still runs is one that hangs."""
        go = self.gate.opened(Gate.GO)
        return time.time() > (self.start_by + WAVE_S if go is None else go + self.turn_s + LATE_S)


class Phase(NamedTuple):
    word: str
    """What a drafter says when it has done so many steps in all."""
    steps: int
    end: float
    """time.time()"""


class Drafting:
    """A drafter with its inputs on one device."""

    def __init__(self, step: TrainStep, inputs: list[tuple[Tensor, PackTensors]], journal: Journal) -> None:
        self.step, self.inputs, self.journal = step, inputs, journal
        self.reduced = torch.empty_like(step.vector)
        self.done = 0
        self.failing_since: float | None = None

    def run(self, index: int, quota: Quota, workaround: Workaround, start: threading.Barrier | None = None) -> None:
        """Consumes packs in order, each until it succeeds; produces one line per attempt.

        Waits after the warm-up for the gate, for `WAVE_S` at most; ends with the quota.
        """
        if self.step.device.type == "cuda":
            torch.cuda.set_device(self.step.device)
        if start is not None:
            start.wait(60)
        self._until(Phase("warm", WARM_STEPS, quota.start_by), index, quota.gate, workaround)
        go = quota.gate.wait(Gate.GO, quota.start_by + WAVE_S)
        self.journal.write("go")
        if go is not None:
            self._until(Phase("done", self.done + quota.steps, go + quota.turn_s), index, quota.gate, workaround)
        self.journal.write("end", graphs=compiled_graphs())

    def _until(self, phase: Phase, index: int, gate: Gate, workaround: Workaround) -> None:
        """Train until every drafter has said the phase's word, or time is over; one that gave up does nothing more."""
        while self.failing_s() < GIVE_UP_S and time.time() < phase.end and not gate.all_said(phase.word):
            self.done += self.attempt(self.done, workaround.of_step(self.done))
            if self.done == phase.steps:
                gate.say(phase.word, index)
        gate.say(phase.word, index)

    def failing_s(self) -> float:
        """For how long all that it tried has failed."""
        return 0.0 if self.failing_since is None else time.time() - self.failing_since

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
            self.failing_since = self.failing_since or time.time()
            self.step.discard()
            time.sleep(PAUSE_S)
            return 0
        self.failing_since = None
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
