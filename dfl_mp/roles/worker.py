"""What target and drafter share: the control thread that owns the link, the lock around the state machine, and the
tally of what the main thread does. In a worker only the main thread computes; nothing here imports torch."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from dfl_mp.errors import RefusedMessage
from dfl_mp.log import say
from dfl_mp.messages import Heartbeat, Message, Status
from dfl_mp.transport.links import Link

T = TypeVar("T")
HEARTBEAT_S = 1.0


class Machine(Protocol):
    """A worker's state machine, as the control thread sees it."""

    outbox: list[Message]
    stopped: bool

    def hello(self) -> Message: ...
    def handle(self, message: Message) -> None: ...


class Tally:
    """What the main thread is doing, since when, and how its time was spent. Read by the control thread."""

    def __init__(self, counts: bool = True) -> None:
        """`counts`: the host's time in `idle` and `working` is what was waited and worked; else `spent` says it."""
        self.state = "starting"
        self.note = ""
        self.step = 0
        self.packs = 0
        self.busy_s = 0.0
        self.wait_s = 0.0
        self._counts = counts
        self._since = time.monotonic()

    @contextmanager
    def doing(self, state: str, note: str = "") -> Iterator[None]:
        """Count the time of the block as waiting when `state` is idle, as busy when it is working."""
        before, began = self.state, time.monotonic()
        self.state, self.note, self._since = state, note, began
        try:
            yield
        finally:
            spent = time.monotonic() - began
            if self._counts:
                self.spent(spent if state == "working" else 0.0, spent if state == "idle" else 0.0)
            self.state, self.note, self._since = before, "", time.monotonic()

    def spent(self, busy_s: float, wait_s: float) -> None:
        """Add to what was worked and waited."""
        self.busy_s += busy_s
        self.wait_s += wait_s

    def status(self) -> Status:
        return Status(
            state=self.state,  # type: ignore[arg-type]
            since_s=time.monotonic() - self._since,
            step=self.step,
            busy_s=self.busy_s,
            wait_s=self.wait_s,
            packs=self.packs,
            note=self.note,
        )


class Control(threading.Thread):
    """The control thread, the only owner of the link.

    consumes: messages of the coordinator, handed to the machine
    waits for: the link, or a wake-up after another thread changed the machine
    unblocked by: the coordinator; the launcher's death ends the process
    produces: Hello on every new link, the machine's outbox in order, a heartbeat every second
    """

    def __init__(
        self,
        run_dir: Path,
        worker: str,
        machine: Machine,
        on_change: Callable[[], None] | None = None,
        tally: Tally | None = None,
    ) -> None:
        super().__init__(name="control", daemon=True)
        self.tally = tally or Tally()
        self.changed = threading.Condition()
        """Guards the machine; notified after every change."""
        self._link = Link(run_dir, worker)
        self._machine = machine
        self._on_change = on_change
        self._greeted = False
        self._closing = threading.Event()

    def run(self) -> None:
        next_beat = 0.0
        while not self._closing.is_set():
            if not self._greeted:
                if self._machine.stopped:
                    self._closing.wait(HEARTBEAT_S)
                else:
                    self._greet()
                continue
            message = self._receive(max(0.0, min(next_beat - time.monotonic(), HEARTBEAT_S)))
            with self.changed:
                if message is not None:
                    self._machine.handle(message)
                    if self._on_change is not None:
                        self._on_change()
                    self.changed.notify_all()
                out = self._take_outbox()
            if time.monotonic() >= next_beat:
                out.append(Heartbeat(status=self.tally.status()))
                next_beat = time.monotonic() + HEARTBEAT_S
            self._greeted = self._greeted and all(self._link.send(m) for m in out)
        self._link.close()

    def _receive(self, within: float) -> Message | None:
        try:
            message = self._link.receive(within)
        except RefusedMessage as error:
            say(f"refused: {error}")
            return None
        if self._link.broken:
            self._greeted = False
        return message

    def _greet(self) -> None:
        """Begin a new link with a Hello that is one snapshot of the machine (rule 13)."""
        if self._link.broken or self._machine.outbox:
            self._link.reopen()
        if not self._link.connected(within=HEARTBEAT_S):
            return
        with self.changed:
            hello = self._machine.hello()
        self._greeted = self._link.send(hello)

    def _take_outbox(self) -> list[Message]:
        out = list(self._machine.outbox)
        self._machine.outbox.clear()
        return out

    def report(self, change: Callable[[], None]) -> None:
        """From any thread: change the machine and send what it says."""
        with self.changed:
            change()
            self.changed.notify_all()
        self._link.wake()

    def wait_for(self, choose: Callable[[], T | None]) -> T | None:
        """Wait until `choose`, called under the lock, gives something; None when the run is over."""
        with self.changed:
            while not self._machine.stopped:
                chosen = choose()
                if self._machine.outbox:
                    self._link.wake()
                if chosen is not None:
                    return chosen
                self.changed.wait(timeout=HEARTBEAT_S)
        return None

    def close(self) -> None:
        """Send what is left and end the thread."""
        self._closing.set()
        self._link.wake()
        self.join(timeout=5.0)


def end_process_on_thread_error() -> None:
    """A thread that fails takes its process along, with its traceback in the log."""

    def hook(args: threading.ExceptHookArgs) -> None:
        traceback.print_exception(args.exc_type, args.exc_value, args.exc_traceback)
        sys.stderr.flush()
        os._exit(1)

    threading.excepthook = hook
