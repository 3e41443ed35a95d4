"""The end of processes: asked, then SIGTERM, then SIGKILL of the group; each rung with its time."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from launcher.crew import Crew

TERM_WITHIN_S = 3.0
KILL_WITHIN_S = 10.0

Rung = tuple[signal.Signals | None, float]
KILL: tuple[Rung, ...] = ((signal.SIGKILL, KILL_WITHIN_S),)
TERM: tuple[Rung, ...] = ((signal.SIGTERM, TERM_WITHIN_S), *KILL)


class Interrupted(Exception):
    """The user wants the run to end: raised where the supervisor waits, never elsewhere."""


def by_themselves(within: float) -> tuple[Rung, ...]:
    """The whole ladder for workers that have been told to stop."""
    return ((None, within), *TERM)


def climb(crew: Crew, rungs: Sequence[Rung], turn: Callable[[float], object]) -> None:
    """Climb until nobody is alive. `turn(within)` waits for a death and buries the dead; it may raise Interrupted."""
    for number, within in rungs:
        if number is not None:
            crew.signal_all(number)
        until = time.monotonic() + within
        while crew.alive and (left := until - time.monotonic()) > 0:
            turn(left)
