"""What a person sees of a run, and the `progress.json` that others read."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from dfl_mp.messages import Progress
from launcher import live, summary
from launcher.child import Child
from launcher.live import Live
from launcher.plain import Plain
from launcher.snapshot import Phase, Snapshot, Worker

WRITE_S = 1.0
PHASES: dict[str, Phase] = {"prepare": "prepare", "evaluator": "evaluate"}


def display(run_dir: Path, every_s: float) -> Live | Plain:
    """A live screen on a terminal, plain lines elsewhere."""
    return Live(run_dir) if live.possible(sys.stdout) else Plain(every_s)


class Console:
    """Collects what the supervisor knows into snapshots; shows them and writes them down."""

    def __init__(self, run_dir: Path, every_s: float) -> None:
        self._run_dir = run_dir
        self._display = display(run_dir, every_s)
        self._began = time.time()
        self._next_write = 0.0
        self._newest: Progress | None = None
        self._names: dict[str, None] = {}
        """Workers seen so far, in their order."""
        self._last: Snapshot | None = None
        self.say, self.notice = self._display.say, self._display.notice

    @property
    def saving(self) -> bool:
        """Whether a worker says that it is writing a checkpoint."""
        workers = self._newest.workers if self._newest else ()
        return any(line.status is not None and line.status.state == "saving" for line in workers)

    def progress(self, progress: Progress) -> None:
        """Take in what the coordinator says."""
        self._newest = progress

    def waiting(self, child: Child) -> None:
        """A phase of one process: what it said last."""
        said = [line for line in child.log_lines() if line.strip()]
        self._look(PHASES[child.name], said[-1] if said else f"{child.name}, loading", ())

    def tick(self, alive: Iterable[Child], stopping: bool = False) -> None:
        """The phase of training: `alive` are its targets and drafters."""
        self._look("stopping" if stopping else "train", "", alive)

    def finish(self) -> None:
        """The run is done and has its summary: the last screen."""
        self._over()
        self._display.finish(summary.ending(self._run_dir))

    def close(self, erase: bool = False) -> None:
        """Stop drawing, whatever happened; what is said from now on stands below the last frame."""
        self._over()
        self._display.close(erase)

    def _look(self, phase: Phase, message: str, alive: Iterable[Child]) -> None:
        now = time.time()
        snapshot = Snapshot(
            time=now,
            began=self._began,
            pid=os.getpid(),
            phase=phase,
            message=message.strip(),
            workers=self._workers(alive),
            progress=self._newest,
        )
        self._last = snapshot
        if now >= self._next_write:
            self._next_write = now + WRITE_S
            snapshot.write(self._run_dir)
        self._display.show(snapshot)

    def _workers(self, alive: Iterable[Child]) -> tuple[Worker, ...]:
        living = {child.name: child for child in alive}
        self._names |= dict.fromkeys(living)
        workers = []
        for name in self._names:
            child = living.get(name)
            state = "down" if child is None else "ready" if child.ready else "starting"
            workers.append(Worker(name=name, id=child.id if child else None, state=state))  # type: ignore[arg-type]
        return tuple(workers)

    def _over(self) -> None:
        """Tell readers of `progress.json` that this launcher writes it no more."""
        if self._last is not None and self._last.phase != "over":
            self._last = self._last.model_copy(update={"phase": "over", "time": time.time()})
            self._last.write(self._run_dir)
