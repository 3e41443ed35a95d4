"""Starts a cell's interpreters and ends them."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from benchmarks.threads_vs_processes.gate import Gate
from benchmarks.threads_vs_processes.memory import Memory, gpu_used_mb, helpers_of
from benchmarks.threads_vs_processes.worker import Job
from dfl_mp.lifeline import DEATH_PIPE

POLL_S = 2.0
KILL_S = 20.0


@dataclass
class Launch:
    """The interpreters of one cell. All times are those of its gate and its jobs."""

    jobs: list[Job]
    cache: Path
    """Folder of the compile cache, shared by all of them."""
    gpus: list[str] = field(default_factory=list)
    """Names for CUDA_VISIBLE_DEVICES; an interpreter with one drafter sees one of them."""
    compile_threads: int = 1
    memory: Memory = field(default_factory=Memory)
    hangs: bool = False
    """It did not end by itself in time."""
    _children: list[psutil.Popen] = field(default_factory=list)
    _lifelines: list[int] = field(default_factory=list)
    _output: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    _rested: threading.Event = field(default_factory=threading.Event)

    @property
    def gate(self) -> Gate:
        return self.jobs[0].gate

    def environment(self, job: Job, lifeline: int) -> dict[str, str]:
        env = dict(os.environ) | {"TORCHINDUCTOR_CACHE_DIR": str(self.cache), DEATH_PIPE: str(lifeline)}
        env.pop("TRITON_CACHE_DIR", None)
        env["TORCHINDUCTOR_COMPILE_THREADS"] = str(self.compile_threads)
        env["OMP_NUM_THREADS"] = "1"
        if self.gpus:
            alone = len(job.drafters) == 1
            env["CUDA_VISIBLE_DEVICES"] = self.gpus[job.drafters[0] % len(self.gpus)] if alone else ",".join(self.gpus)
        return env

    def start(self) -> None:
        """To be called in the main thread: its end is theirs."""
        for job in self.jobs:
            self._children.append(self._start(job))
        threading.Thread(target=self._watch, daemon=True).start()

    def _start(self, job: Job) -> psutil.Popen:
        module = "benchmarks.threads_vs_processes.worker"
        reading, held = os.pipe()
        self._lifelines.append(held)
        command = [sys.executable, "-m", "dfl_mp.lifeline", module, job.to_json()]
        try:
            return psutil.Popen(
                command,
                env=self.environment(job, reading),
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
                pass_fds=(reading,),
            )
        finally:
            os.close(reading)

    def _watch(self) -> None:
        while not self._rested.wait(POLL_S):
            self.look()

    def look(self) -> None:
        self.memory.look([child for child in self._children if child.is_running()])

    def rest(self) -> None:
        """Look at the memory no more: the timed steps come."""
        self._rested.set()

    def ready(self) -> bool:
        return self.gate.all_said("warm") or self.ended()

    def over(self) -> bool:
        return self._all("over")

    def reported(self) -> bool:
        return self._all("reported")

    def ended(self) -> bool:
        return all(child.poll() is not None for child in self._children)

    def _all(self, word: str) -> bool:
        pairs = zip(self.jobs, self._children, strict=True)
        return all(self.gate.said(word, job.drafters[0]) or child.poll() is not None for job, child in pairs)

    def end(self) -> None:
        """Kill the interpreters with their compile helpers; show what was said by one that had broken."""
        self.rest()
        broken = any(child.poll() for child in self._children)
        before = gpu_used_mb(self.gpus) if self.gpus else None
        for child in self._children:
            _kill(child)
        for held in self._lifelines:
            os.close(held)
        if before is not None and not broken:
            after = gpu_used_mb(self.gpus)
            self.memory.gpu_mb = None if after is None else before - after
        if broken:
            self._output.seek(0)
            print(self._output.read()[-1500:].decode(errors="replace"), flush=True)
        self._output.close()


def _kill(child: psutil.Popen) -> None:
    doomed = [child, *helpers_of(child)]
    for process in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    with contextlib.suppress(psutil.TimeoutExpired):
        child.wait(KILL_S)
