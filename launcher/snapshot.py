"""What the launcher knows of a run at one moment: `progress.json`, replaced each second, for whoever looks on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from dfl_mp.messages import Progress, Status

FILE = "progress.json"
Phase = Literal["prepare", "train", "evaluate", "stopping", "over"]


class Worker(BaseModel):
    """A worker of the plan. `state` is what the launcher knows; `id` names the incarnation that lives."""

    model_config = ConfigDict(frozen=True)

    name: str
    id: str | None
    state: Literal["starting", "ready", "down"]


class Snapshot(BaseModel):
    """Times are seconds of the wall clock. `message` is what the one process of prepare or evaluate said last."""

    model_config = ConfigDict(frozen=True)

    time: float
    began: float
    pid: int
    phase: Phase
    message: str = ""
    workers: tuple[Worker, ...] = ()
    progress: Progress | None = None

    def write(self, run_dir: Path) -> None:
        """Replace `progress.json` by one rename."""
        part = run_dir / f".{FILE}.{os.getpid()}"
        part.write_text(self.model_dump_json(indent=1), encoding="utf-8")
        part.replace(run_dir / FILE)

    @staticmethod
    def read(run_dir: Path) -> Snapshot | None:
        """The newest one; None when the run has not written any."""
        path = run_dir / FILE
        return Snapshot.model_validate_json(path.read_text(encoding="utf-8")) if path.exists() else None


def state_of(worker: Worker, progress: Progress | None) -> str:
    """`down`, what the worker itself says, or what the launcher has seen of it.

    >>> state_of(Worker(name="target-0", id="target-0.1", state="ready"), None)
    'ready'
    """
    status = status_of(worker, progress)
    return worker.state if status is None else status.state


def doing_of(worker: Worker, progress: Progress | None) -> str:
    """The state in more words where it lasts: `compiling, 23 s`, `waits for drafter-0 to compile, 12 s`."""
    status = status_of(worker, progress)
    if status is None or not (status.note or status.state == "compiling"):
        return state_of(worker, progress)
    return f"{status.note or status.state}, {status.since_s:.0f} s"


def status_of(worker: Worker, progress: Progress | None) -> Status | None:
    """What the living worker says of itself."""
    if worker.state == "down" or progress is None:
        return None
    return next((line.status for line in progress.workers if line.worker == worker.id), None)
