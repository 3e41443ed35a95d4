"""Since when the coordinator has not heard each worker. Pure; the clock is an argument."""

from __future__ import annotations

OWN_GAP_S = 5.0
"""A turn of the coordinator's loop that lasted longer: it was stopped itself, and has heard nobody."""


class Hearing:
    """A worker counts from the moment at which the launcher lists it: one that is stopped while there is no
    coordinator never says Hello to the next.

    >>> hearing = Hearing(0.0)
    >>> hearing.listed("drafter-0.1", 1.0); hearing.heard("target-0.1", 3.0)
    >>> hearing.silences(4.0)
    {'drafter-0.1': 3.0, 'target-0.1': 1.0}
    >>> hearing.silences(100.0)
    {'drafter-0.1': 0.0, 'target-0.1': 0.0}
    """

    def __init__(self, now: float) -> None:
        self._since: dict[str, float] = {}
        self._turn = now

    def listed(self, worker: str, now: float) -> None:
        """The launcher says that it lives."""
        self._since.setdefault(worker, now)

    def heard(self, worker: str, now: float) -> None:
        """It has said something."""
        self._since[worker] = now

    def gone(self, worker: str) -> None:
        self._since.pop(worker, None)

    def silences(self, now: float) -> dict[str, float]:
        """Seconds of silence of each; to be asked at every turn."""
        if now - self._turn > OWN_GAP_S:
            self._since = dict.fromkeys(self._since, now)
        self._turn = now
        return {worker: now - since for worker, since in self._since.items()}
