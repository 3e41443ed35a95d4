"""A training run as a child process, watched through the files that it leaves and ended when enough was seen.

A run is not ended by its last step but by SIGKILL of its launcher, which takes all workers along: so no time goes into
the last checkpoint, the export and the evaluation.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.busy import Seen
from dfl_mp.compiling import CACHES
from dfl_mp.errors import DflError
from dfl_mp.log import read_lines
from dfl_mp.messages import Progress
from launcher.asking import Asking
from launcher.compose import REPO

POLL_S = 0.05
ASK_EVERY_S = 0.25
GONE_WITHIN_S = 15.0
PATIENCE_S = 120.0


class RunFailed(Exception):
    """The run ended or did not come to what was waited for; carries the end of its output."""


class WatchedRun:
    """`with WatchedRun(folder, overrides) as run: run.wait_steps(8, within=120)`. The folder is removed at the end."""

    def __init__(self, folder: Path, overrides: list[str], module: str = "launcher") -> None:
        self.folder = folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.log = folder.with_name(f"{folder.name}.log")
        # Not inherited: `cluster.compile_cache` decides which cache a run has.
        environment = {name: value for name, value in os.environ.items() if name not in CACHES}
        environment["PYTHONPATH"] = os.pathsep.join([str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", module, "train", f"run.dir={folder}", *overrides]
        self.began = time.monotonic()
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
            )
        self.first_step_s: float | None = None
        self.curve: list[tuple[float, int]] = []
        """(seconds, steps committed), one entry whenever they have changed."""
        self.kills: dict[float, str] = {}
        """When on that clock, and who: `benchmarks.kills.kill` takes a run like this one."""
        self.seen = Seen()
        self._over = threading.Event()
        self._asker = threading.Thread(target=self._ask, daemon=True)
        self._asker.start()

    def __enter__(self) -> WatchedRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- what it does -------------------------------------------------------------------------------------------

    def lines(self) -> list[dict[str, Any]]:
        """Of `metrics.jsonl`."""
        return read_lines(self.folder / "metrics.jsonl")

    def steps(self) -> int:
        path = self.folder / "metrics.jsonl"
        steps = path.read_bytes().count(b"\n") if path.exists() else 0
        if steps and self.first_step_s is None:
            self.first_step_s = round(time.monotonic() - self.began, 2)
        if not self.curve or steps != self.curve[-1][1]:
            self.curve.append((round(time.monotonic() - self.began, 3), steps))
        return steps

    def events(self, event: str | None = None) -> list[dict[str, Any]]:
        found = read_lines(self.folder / "events.jsonl")
        return [e for e in found if event in (None, e["event"])]

    def wait(self, condition: Callable[[], object], what: str, within: float = PATIENCE_S) -> float:
        """Seconds until the condition holds. Raises RunFailed when the run ends or the time is over."""
        began = time.monotonic()
        while not condition():
            if self.process.poll() is not None:
                raise RunFailed(f"{what}: the run ended with code {self.process.returncode}; {self.tail()}")
            if time.monotonic() - began > within:
                raise RunFailed(f"{what}: not within {within:.0f} s; {self.tail()}")
            self.steps()
            time.sleep(POLL_S)
        return time.monotonic() - began

    def wait_steps(self, steps: int, within: float) -> float:
        """Until so many steps are committed."""
        return self.wait(lambda: self.steps() >= steps, f"step {steps}", within)

    def measure(self, skip: int, steps: int, seconds: float) -> None:
        """After `skip` steps that were committed already: let it run for `steps` more, or `seconds` and one more."""
        end = time.monotonic() + seconds
        self.wait(
            lambda: self.steps() >= skip + steps or (time.monotonic() > end and self.steps() > skip),
            f"{steps} steps after step {skip}",
            seconds + 60.0,
        )

    def tail(self, most: int = 600) -> str:
        """The end of what it printed, in one line."""
        return " | ".join(self.log.read_text(errors="replace").split("\n"))[-most:]

    def starts(self) -> dict[str, Any]:
        """Worker -> seconds of the parts of its start, and of compiling among them, of those that say so."""
        ready = [e for e in self.events("worker_ready") if e.get("seconds")]
        return {e["worker"]: e["seconds"] | {"compiled": e.get("compiled") or {}} for e in ready}

    def _ask(self) -> None:
        """Look at the workers' own figures several times a second."""
        while not self._over.wait(ASK_EVERY_S):
            if self.first_step_s is None:
                continue
            with contextlib.suppress(DflError, OSError, AssertionError):
                asking = Asking(self.folder, "status")
                try:
                    progress = asking.next(2.0)
                finally:
                    asking.close()
                assert isinstance(progress, Progress)
                self.seen.add(time.monotonic(), progress)

    # ---- its end ------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Kill the launcher; its workers end by themselves. Whoever does not is killed."""
        self._over.set()
        workers = [e["pid"] for e in self.events("worker_started")]
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._asker.join(timeout=5.0)
        until = time.monotonic() + GONE_WITHIN_S
        while (left := [pid for pid in workers if _is_alive(pid)]) and time.monotonic() < until:
            time.sleep(POLL_S)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    """Whether a process of that id runs and is a worker: the kernel may have given the id to another."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"dfl_mp.lifeline" in words
