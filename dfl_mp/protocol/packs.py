"""The pack table: where each uncommitted pack is. Pure; the coordinator's machine is its only user.

    pending -> leased -> ready -> held (assigned -> copied) -> trained -> [committed: entry deleted]

`pending`: nobody has it. `leased`: a target computes it into a slot. `ready`: the slot holds its features. `held`: a
drafter has it under a lease number. `trained`: it is in that drafter's gradient. `aside`: it counts as trained with
weight 0. Entries are made lazily in order of their numbers; a number never made is pending.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dfl_mp.messages import SlotRef

State = Literal["pending", "leased", "ready", "held", "trained", "aside"]


@dataclass
class Pack:
    """One entry. `holder` is a target while leased, a drafter while held or trained."""

    number: int
    state: State = "pending"
    holder: str | None = None
    ref: SlotRef | None = None
    copied: bool = False
    lease: int = 0
    revoking: bool = False
    balanced: bool = False
    """Was revoked at the tail of its step once; never again (rule 3)."""

    def to_pending(self) -> None:
        self.state, self.holder, self.ref, self.copied, self.revoking = "pending", None, None, False, False

    def to_leased(self, target: str, slot: int) -> None:
        self.state, self.holder, self.ref = "leased", target, SlotRef(target=target, slot=slot, seq=0)

    def to_ready(self, ref: SlotRef) -> None:
        self.state, self.holder, self.ref, self.copied, self.revoking = "ready", None, ref, False, False

    def to_held(self, drafter: str, lease: int) -> None:
        self.state, self.holder, self.lease, self.copied, self.revoking = "held", drafter, lease, False, False

    def to_trained(self) -> None:
        self.state, self.revoking = "trained", False

    def to_aside(self) -> None:
        self.to_pending()
        self.state = "aside"


class PackTable:
    """All uncommitted packs of a run of `num_steps` steps of `per_step` packs.

    >>> table = PackTable(per_step=2, num_steps=2, aside=set())
    >>> [p.number for p in table.of_step(1)]
    [2, 3]
    """

    def __init__(self, per_step: int, num_steps: int, aside: set[int]) -> None:
        self.per_step = per_step
        self.end = per_step * num_steps
        self.aside = aside
        self._packs: dict[int, Pack] = {}
        self._next = 0
        """Every number from here on has no entry."""

    def get(self, number: int) -> Pack | None:
        """The entry, made if the number was not reached yet; None for a committed or unknown pack."""
        if self._next <= number < self.end:
            self._grow(number + 1)
        return self._packs.get(number)

    def of_step(self, step: int) -> list[Pack]:
        """The G packs of an uncommitted step."""
        packs = [self.get(n) for n in range(step * self.per_step, (step + 1) * self.per_step)]
        return [p for p in packs if p is not None]

    def next_pending(self, beyond: int) -> Pack | None:
        """The lowest pending pack with a number above `beyond`."""
        known = [n for n, p in self._packs.items() if n > beyond and p.state == "pending"]
        if known:
            return self._packs[min(known)]
        while self._next < self.end:
            pack = self.get(self._next)
            if pack is not None and pack.number > beyond and pack.state == "pending":
                return pack
        return None

    def within(self, *states: State) -> list[Pack]:
        """Entries in one of the states, by number."""
        return [p for _, p in sorted(self._packs.items()) if p.state in states]

    def __iter__(self) -> Iterator[Pack]:
        return iter(list(self._packs.values()))

    def drop_step(self, step: int) -> None:
        """The step is committed: its entries go."""
        self.get((step + 1) * self.per_step - 1)
        for n in range(step * self.per_step, (step + 1) * self.per_step):
            self._packs.pop(n, None)

    def restart_at(self, step: int) -> list[SlotRef]:
        """Forget everything and begin at `step`. Returns the slots that were full."""
        full = [p.ref for p in self._packs.values() if p.state == "ready" and p.ref is not None]
        self._packs.clear()
        self._next = step * self.per_step
        return full

    def _grow(self, end: int) -> None:
        for n in range(self._next, end):
            self._packs[n] = Pack(n, "aside" if n in self.aside else "pending")
        self._next = end
