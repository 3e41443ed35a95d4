"""One worker process: a fresh interpreter in its own session, its output in a log, its death seen through a pidfd."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dfl_mp.gate import GATE, Gate
from dfl_mp.lifeline import DEATH_PIPE
from launcher.compose import REPO
from launcher.plan import Placement

CRASH_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS})
"""Signals that a process brings on itself."""
TAIL_BYTES = 64 * 1024
TAIL_LINES = 25

ALWAYS = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Lifeline:
    """The launcher's end of the death pipe: nobody else holds the write end, and nothing is ever written."""

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe2(os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self.read_end)
        os.close(self._write_end)


class Child:
    """A running or dead worker. `own_doing` tells whether its death counts as its own."""

    def __init__(self, name: str, incarnation: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.incarnation = incarnation
        self.process = process
        self.log = log
        self.pidfd = os.pidfd_open(process.pid)
        self.ready = False
        self._born = time.monotonic()
        self.stuck = ""
        """Why the coordinator had it killed; empty when it did not."""
        self.ordered = False
        """An operator ended it: its death is no crash."""
        self.kill_at: float | None = None
        """When it is killed if it has not ended by then."""
        self.suspect: int | None = None
        """The pack to blame for its death: every coordinator is told."""

    @property
    def id(self) -> str:
        """`drafter-1.3`"""
        return f"{self.name}.{self.incarnation}"

    @property
    def age(self) -> float:
        """Seconds since it was started, or let through the gate."""
        return time.monotonic() - self._born

    def let_through(self) -> None:
        self._born = time.monotonic()

    @property
    def code(self) -> int | None:
        """Exit code, minus the signal's number, or None while it is not reaped."""
        return self.process.returncode

    @property
    def own_doing(self) -> bool:
        """It exited or crashed by itself, or was killed as stuck; False after a signal from outside."""
        if self.ordered:
            return False
        if self.stuck or self.code is None:
            return bool(self.stuck)
        return self.code >= 0 or -self.code in CRASH_SIGNALS

    def how_it_ended(self) -> str:
        if self.ordered:
            return "ended by an operator"
        if self.stuck:
            return f"killed as stuck: {self.stuck}"
        return (
            f"exit code {self.code}" if self.code is None or self.code >= 0 else f"killed by {signal_name(-self.code)}"
        )

    def signal_group(self, number: signal.Signals) -> None:
        """Send the signal to the worker and its own children. Safe until it is reaped: its id stays taken."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def reap(self) -> None:
        """Take the dead worker's exit code; what it left of its group is killed first."""
        self.signal_group(signal.SIGKILL)
        self.process.wait()
        os.close(self.pidfd)

    def log_lines(self) -> list[str]:
        """The end of its log, at most 64 KiB."""
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode(errors="replace").rstrip().splitlines()

    def last_words(self) -> str:
        """Its last traceback, or its last lines when there is none."""
        lines = self.log_lines()
        starts = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call last):")]
        return "\n".join(lines[starts[-1] :] if starts else lines[-TAIL_LINES:])


def spawn(module: str, arguments: Sequence[str], worker: tuple[str, int, Path], surroundings: Surroundings) -> Child:
    """Start `python -m module arguments` as `worker` (name, incarnation, folder of logs)."""
    name, incarnation, logs = worker
    log = logs / f"{name}.{incarnation}.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "dfl_mp.lifeline", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=surroundings.environment(),
            pass_fds=surroundings.inherited(),
            start_new_session=True,
        )
    return Child(name, incarnation, process, log)


class Surroundings:
    """Where a worker runs: its place, its threads, the death pipe, and the gate that it waits at, if any."""

    def __init__(self, placement: Placement | None, threads: int, lifeline: Lifeline, gate: Gate | None = None) -> None:
        self.placement = placement
        self.threads = threads
        self.lifeline = lifeline
        self.gate = gate

    def inherited(self) -> tuple[int, ...]:
        """Descriptors that the worker keeps."""
        return (self.lifeline.read_end, *([self.gate.read_end] if self.gate else []))

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The whole environment of the launcher and ours on top; never a fresh one."""
        environment = dict(base) | ALWAYS | dict.fromkeys(THREADS, str(self.threads))
        environment[DEATH_PIPE] = str(self.lifeline.read_end)
        if self.gate is not None:
            environment[GATE] = self.gate.setting
        paths = [str(REPO), *filter(None, [base.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        if self.placement is not None and self.placement.gpu is not None:
            environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            environment["CUDA_VISIBLE_DEVICES"] = self.placement.gpu.name
            # CUDA IPC exports whole segments; a ring must not lie in one that can grow.
            settings = [*filter(None, [base.get(ALLOCATOR)]), "expandable_segments:False"]
            environment[ALLOCATOR] = ",".join(settings)
        return environment


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
