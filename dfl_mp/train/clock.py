"""How long a drafter's device works and waits, by the device's own clock: the host only enqueues, so its clock lies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

import torch

Mark = TypeVar("Mark")


class Spent(NamedTuple):
    busy_s: float
    wait_s: float
    """Between the end of one piece of work and the beginning of a pack."""


class DeviceClock(Generic[Mark]):
    """Marks the beginning and the end of each piece of work; differences are read later, when a host wait is over.

    `mark` makes a mark now, `between` gives the seconds between two marks that the device has passed.
    """

    def __init__(self, mark: Callable[[], Mark], between: Callable[[Mark, Mark], float]) -> None:
        self._mark, self._between = mark, between
        self._spans: list[tuple[Mark, Mark, bool]] = []
        self._before: Mark | None = None
        """The end of the last span that was read."""

    @contextmanager
    def working(self, waited: bool) -> Iterator[None]:
        """Work is enqueued in the block; `waited`: the time since the work before it was spent waiting for data."""
        begin = self._mark()
        yield
        self._spans.append((begin, self._mark(), waited))

    def read(self) -> Spent:
        """Of the work since the last call, but for the newest piece, which the device may not have ended."""
        spans, self._spans = self._spans[:-1], self._spans[-1:]
        busy = wait = 0.0
        for begin, end, waited in spans:
            if self._before is not None and waited:
                wait += self._between(self._before, begin)
            busy += self._between(begin, end)
            self._before = end
        return Spent(busy, wait)

    def forget(self) -> None:
        """What comes next does not count as waiting: something else was done."""
        self._spans, self._before = [], None


def cuda_clock() -> DeviceClock[torch.cuda.Event]:
    """On the current stream."""

    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    return DeviceClock(mark, lambda a, b: a.elapsed_time(b) / 1e3)


def host_clock() -> DeviceClock[float]:
    """Where work is done when its call returns."""
    return DeviceClock(time.monotonic, lambda a, b: b - a)
