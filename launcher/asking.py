"""One question to a running coordinator: sent as a peer of its own, answered in seconds or refused with the reason."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

from dfl_mp.errors import DflError, RefusedMessage
from dfl_mp.messages import Command, Message
from dfl_mp.transport.links import Link
from launcher.attach import launcher_of, running
from launcher.snapshot import Snapshot
from launcher.tail import short

ANSWER_WITHIN_S = 5.0
LOOK_S = 0.2

What = Literal["status", "checkpoint", "kill", "restart", "remove", "add-drafter"]


class NotNow(DflError):
    """The run cannot answer; the message says why."""


class Silence(NotNow):
    """Nothing came in time; the link stands."""


class Asking:
    """One command on its way, and what comes back."""

    def __init__(self, run_dir: Path, what: What, worker: str = "") -> None:
        """Sends the command. Raises NotNow when there is nobody to take it."""
        refuse_if_over(run_dir)
        self._run_dir = run_dir
        self._link = Link(run_dir, f"ctl-{os.getpid()}")
        try:
            self._connect(time.monotonic() + ANSWER_WITHIN_S)
            self._link.send(Command(what=what, worker=worker[:64], operator=f"ctl-{os.getpid()}"))
        except BaseException:
            self._link.close()
            raise

    def _connect(self, until: float) -> None:
        while not self._link.connected(LOOK_S):
            refuse_unless_training(self._run_dir)
            if time.monotonic() >= until:
                raise NotNow("the coordinator is starting (again) and does not answer yet; try again")

    def next(self, within: float) -> Message:
        """The next message. Raises Silence when it does not come, NotNow when the coordinator goes."""
        until = time.monotonic() + within
        while (left := until - time.monotonic()) > 0:
            try:
                message = self._link.receive(left)
            except RefusedMessage as error:
                raise NotNow(f"cannot read the answer: {error}") from None
            if message is not None:
                return message
            if self._link.broken:
                time.sleep(LOOK_S)  # a run that ends takes its coordinator along first
                refuse_unless_training(self._run_dir)
                raise NotNow("the coordinator went away before it answered; look at make status, then try again")
        raise Silence(f"no answer within {within:.0f} s")

    def close(self) -> None:
        self._link.close()


def refuse_if_over(run_dir: Path) -> None:
    """Raises NotNow."""
    if not running(run_dir):
        raise NotNow(f"{short(run_dir)} is over; how it ended: make status RUN={short(run_dir)}")


def refuse_unless_training(run_dir: Path) -> None:
    """Why there is no coordinator: raises NotNow when the run is over, or in a phase without workers."""
    refuse_if_over(run_dir)
    snapshot = Snapshot.read(run_dir)
    if snapshot is not None and snapshot.pid == launcher_of(run_dir) and snapshot.phase in ("prepare", "evaluate"):
        raise NotNow(f"the run is in its phase {snapshot.phase}, which has no targets and drafters")
