"""In a worker of a chaos run: states are passed here, and whoever passes an armed one first is hit.

RUN.chaos/armed/<number>@<role>.<state>.json   what happens to whom; made by the driver
RUN.chaos/fired/<number>.json                  written by the process that took it, before it is hit
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from dfl_mp.log import read_lines, write_json
from dfl_mp.messages import role_of

HOLD_S = 6.0
"""One that is held for an operator's restart goes on after so long."""


def folder_of(run_dir: Path) -> Path:
    """Beside the run's: a folder that is not empty would be refused as a run's."""
    return run_dir.with_name(f"{run_dir.name}.chaos")


class Mines:
    """Of this process. `worker` is its id, or its role where it has none."""

    def __init__(self, run_dir: Path, worker: str) -> None:
        self.folder = folder_of(run_dir)
        self._run_dir, self._worker, self._role = run_dir, worker, role_of(worker)
        self._taking = threading.Lock()

    @staticmethod
    def of_this_process() -> Mines:
        """By the command line `RUN_DIR [WORKER]`; a worker without an id is named by its module."""
        role = Path(sys.argv[0]).stem
        return Mines(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else role)

    def pass_by(self, state: str) -> None:
        """This process is in the state: the mine that lies there, if any, goes off."""
        wanted = f"@{self._role}.{state}.json"
        with self._taking:
            for name in os.listdir(self.folder / "armed"):
                if name.endswith(wanted):
                    self._step_on(name)

    def gate(self) -> int:
        """The first step of which nothing is computed yet."""
        return int((self.folder / "gate").read_text())

    def _step_on(self, name: str) -> None:
        taken = self.folder / "taken" / name
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "armed" / name).rename(taken)
            self._go_off(json.loads(taken.read_text()))

    def _go_off(self, mine: dict[str, Any]) -> None:
        victim, pid = self._worker, os.getpid()
        if mine["victim"]:
            victim, pid = self._newest(mine["victim"])
        time.sleep(mine["pause_s"])  # what was just sent has left, or not
        fired = self.folder / "fired" / f"{mine['number']}.json"
        write_json(fired, {"worker": victim, "by": self._worker, "pid": pid, "time": time.time()})
        if mine["do"] == "hold":
            time.sleep(HOLD_S)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.Signals[mine["do"]])

    def _newest(self, role: str) -> tuple[str, int]:
        started = [e for e in read_lines(self._run_dir / "events.jsonl") if e["event"] == "worker_started"]
        event = next(e for e in reversed(started) if role_of(e["worker"]) == role)
        return f"{event['worker']}.{event['incarnation']}", event["pid"]
