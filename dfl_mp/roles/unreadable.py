"""Whether a ring that could not be mapped means anything but its owner's death. Pure; the clock is an argument."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

GRACE_S = 1.0
"""A drafter may meet a death before the launcher has told it: as long does the launcher take at most."""


class Complaint(NamedTuple):
    """`drafter` could not map the ring of `target` because of `reason`; with `proved` it is not the first target that
    lived on: the fault is CUDA IPC's."""

    target: str
    drafter: str
    reason: str
    proved: bool


class Unreadable:
    """Complaints about rings, held back until it is plain that the owner lives.

    >>> unreadable = Unreadable()
    >>> unreadable.take("target-0.1", "drafter-0.1", "no map", 5.0)
    >>> unreadable.due(5.5, dying=())
    []
    >>> unreadable.due(6.0, dying=())
    [Complaint(target='target-0.1', drafter='drafter-0.1', reason='no map', proved=False)]
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[float, str, str]] = {}
        self._believed: set[str] = set()

    def take(self, target: str, drafter: str, reason: str, now: float) -> None:
        """A drafter complains of a target that is not known to be dead."""
        self._waiting.setdefault(target, (now, drafter, reason))

    def due(self, now: float, dying: Container[str]) -> list[Complaint]:
        """Complaints that have outlived their grace, but for targets that are dead or being killed: each is to be told
        once. To be asked at every turn."""
        complaints = []
        for target, (since, drafter, reason) in list(self._waiting.items()):
            if target in dying:
                del self._waiting[target]
            elif now - since >= GRACE_S:
                del self._waiting[target]
                self._believed.add(target)
                complaints.append(Complaint(target, drafter, reason, proved=len(self._believed) > 1))
        return complaints
