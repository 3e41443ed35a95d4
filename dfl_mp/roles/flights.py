"""Packs that were given to the device and have not been seen to end. A fault of a GPU shows at a later wait of the
host: until then the black box goes on naming a pack."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from dfl_mp import blackbox
from dfl_mp.blackbox import BlackBox
from dfl_mp.messages import incarnation_of, name_of


class Mark(Protocol):
    """A place in the device's work, as `torch.cuda.Event`; both raise once the device has had a fault."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...


def cuda_mark() -> torch.cuda.Event:
    """On the current stream; who waits for it sleeps."""
    event = torch.cuda.Event(blocking=True)
    event.record()
    return event


class OneByOne:
    """Which packs a process waits for before it gives the next: none, if it is the first of its name. One that follows
    another does so in its first step, and up to the step of the pack that the other has left named, so that a pack
    that crashes it is named rightly. To be called with each pack in order."""

    def __init__(self, run_dir: Path, worker: str, per_step: int) -> None:
        self._per_step = per_step
        self._first = incarnation_of(worker) == 1
        before = f"{name_of(worker)}.{incarnation_of(worker) - 1}"
        named = None if self._first else blackbox.read(run_dir, before)[1]
        self._named = -1 if named is None else named // per_step
        self._until: int | None = None
        """The last step of this kind, known with the first pack."""

    def __call__(self, pack: int) -> bool:
        step = pack // self._per_step
        if self._until is None:
            self._until = max(step, self._named)
        return not self._first and step <= self._until


class Flight(NamedTuple):
    pack: int
    ended: Mark


class Flights:
    """The black box names the oldest pack in flight. `mark` is None where the call itself does the work."""

    def __init__(self, box: BlackBox, mark: Callable[[], Mark] | None, one_by_one: Callable[[int], bool]) -> None:
        self._box, self._mark, self._one_by_one = box, mark, one_by_one
        self._flying: deque[Flight] = deque()

    @contextmanager
    def giving(self, pack: int) -> Iterator[None]:
        """The block enqueues the pack, or does the work."""
        while self._flying and self._flying[0].ended.query():
            self._landed()
        if not self._flying:
            self._box.computing(pack)
        yield
        if self._mark is None:
            self._box.computing(None)
            return
        self._flying.append(Flight(pack, self._mark()))
        if self._one_by_one(pack):
            self.wait()

    def wait(self) -> None:
        """On the host, for one after the other, until nothing is in flight. Raises the device's fault, if there was
        one; the pack stays named."""
        while self._flying:
            self._flying[0].ended.synchronize()
            self._landed()

    def _landed(self) -> None:
        self._flying.popleft()
        self._box.computing(self._flying[0].pack if self._flying else None)
