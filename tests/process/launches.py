"""Starts real launchers with stub workers, and looks for what they leave."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dfl_mp.log import read_lines
from launcher.compose import REPO

STUB_RUN = """
import sys
from launcher import __main__ as cli, train
stubs = "tests.process.stubs."
modules = {role: stubs + role for role in ("prepare", "coordinator", "evaluator")}
modules |= dict.fromkeys(("target", "drafter"), stubs + "worker")
cli.COMMANDS["train"] = ("", lambda overrides: train.main(overrides, modules))
sys.exit(cli.run(["train", *sys.argv[1:]]))
"""
MARK = "DFL_TEST_MARK"
QUICK = ("cluster.targets=1", "cluster.drafters=2", "deadline.stop=1.0", "run.progress_every_s=0.2")


class Launch:
    """A launcher in a session of its own; `out` is what it has printed once it is over."""

    def __init__(self, run_dir: Path, mode: str = "", *overrides: str) -> None:
        self.run_dir = run_dir
        environment = dict(os.environ, DFL_STUB=mode, CUDA_VISIBLE_DEVICES="", PYTHONPATH=str(REPO))
        environment[MARK] = str(run_dir)
        self.environment = environment
        command = [sys.executable, "-c", STUB_RUN, *QUICK, f"run.dir={run_dir}", *overrides]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.out = self.err = ""

    def wait(self, within: float = 20.0) -> int:
        self.out, self.err = self.process.communicate(timeout=within)
        return self.process.returncode

    def events(self, event: str, worker: str | None = None) -> list[dict[str, Any]]:
        lines = read_lines(self.run_dir / "events.jsonl")
        return [e for e in lines if e["event"] == event and (worker is None or e["worker"] == worker)]

    def told(self, kind: str) -> list[dict[str, Any]]:
        """What the launcher has said to the coordinators."""
        return [line for line in read_lines(self.run_dir / "told.jsonl") if line["kind"] == kind]

    def pid_of(self, worker: str, incarnation: int = 1) -> int:
        """Waits until the worker is ready and the coordinator greeted."""
        until(lambda: self.told("Alive"))
        until(lambda: any(e["incarnation"] == incarnation for e in self.events("worker_ready", worker)))
        return next(e["pid"] for e in self.events("worker_ready", worker) if e["incarnation"] == incarnation)


@contextlib.contextmanager
def launched(run_dir: Path, mode: str = "", *overrides: str) -> Iterator[Launch]:
    launch = Launch(run_dir, mode, *overrides)
    try:
        yield launch
    finally:
        if launch.process.poll() is None:
            launch.process.kill()
            launch.process.communicate()


def until(condition: Callable[[], object], within: float = 15.0) -> None:
    """Wait for the condition; fail when it does not come true."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"not within {within} s"
        time.sleep(0.02)


def processes(run_dir: Path) -> list[int]:
    """Processes of the run, whoever started them: all of them have inherited the mark."""
    found, mark = [], f"{MARK}={run_dir}".encode()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found
