"""Who is stuck, and whether a generation or a reduce is late. Pure: statuses and the clock in, verdicts out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dfl_mp.config import DeadlineConfig
from dfl_mp.messages import Status


class Order(NamedTuple):
    """What the coordinator has ordered and waits for: `what` is "form" or "reduce", `state` is what a worker that has
    entered it says of itself."""

    what: str
    generation: int
    step: int
    members: tuple[str, ...]

    @property
    def state(self) -> str:
        return "joining" if self.what == "form" else "reducing"

    def __str__(self) -> str:
        return (
            f"form {self.generation}" if self.what == "form" else f"reduce {self.step} in generation {self.generation}"
        )


class Deadlines:
    """The limits of `deadline`. A verdict is worker -> reason.

    A worker begins `joining` anew with each order that supersedes the one before, so one that says it for longer than
    two orders last is stuck in an old one; `reducing` is superseded when the reduce is late.
    """

    def __init__(self, limits: DeadlineConfig) -> None:
        self._within = {"form": limits.form, "reduce": limits.reduce}
        self._state_within = {
            "starting": limits.start,
            "compiling": limits.start,
            "working": limits.step,
            "saving": limits.save,
            "joining": 2 * limits.form,
            "reducing": limits.reduce + limits.form,
        }
        self._open: Order | None = None
        self._since = 0.0

    def stuck(self, statuses: Mapping[str, Status]) -> dict[str, str]:
        """Who has been in one state for too long."""
        return {
            worker: f"{status.state} for {status.since_s:.0f} s"
            for worker, status in statuses.items()
            if status.since_s > self._state_within.get(status.state, float("inf"))
        }

    def late(self, order: Order | None, now: float) -> Order | None:
        """The open order, if it is past its deadline; then it counts from now on again, as it is ordered anew. To be
        asked at every turn."""
        if order != self._open:
            self._open, self._since = order, now
        if order is None or now - self._since < self._within[order.what]:
            return None
        self._open = None
        return order

    @staticmethod
    def absent(order: Order, statuses: Mapping[str, Status]) -> dict[str, str]:
        """Members of a late order that have not entered it; who waits for the others is not to blame."""
        entered = {w for w, status in statuses.items() if status.state in (order.state, "idle")}
        return {worker: f"did not enter {order}" for worker in order.members if worker not in entered}
