"""Whether the coordinator still speaks: it reports twice a second, so a long silence is a stuck process. Pure; the
clock is an argument."""

from __future__ import annotations

SILENT_AFTER_S = 60.0
OWN_GAP_S = 5.0
"""A turn of the launcher that lasted longer than this: it was stopped itself, and has heard nobody."""


class Pulse:
    """Told of each turn of the launcher's loop.

    >>> pulse = Pulse(0.0)
    >>> [pulse.silence(t, heard=t < 3.0) for t in (1.0, 2.0, 3.0, 4.0)]
    [0.0, 0.0, 1.0, 2.0]
    """

    def __init__(self, now: float) -> None:
        self._heard = self._turn = now

    def silence(self, now: float, heard: bool) -> float:
        """Seconds since the coordinator was heard; `heard`: in this turn."""
        if heard or now - self._turn > OWN_GAP_S:
            self._heard = now
        self._turn = now
        return now - self._heard
