"""The coordinator's tables, and everything that they make possible: leases, assignments, reduces, generations, saves.

Pure. `Coordinator` (in `coordinator.py`) changes the tables as messages come in; after each, `_schedule` does all
that has become possible.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dfl_mp import messages as m
from dfl_mp.messages import Message, role_of
from dfl_mp.protocol.effects import CutLedger, Effect, Note, PersistGeneration, Send
from dfl_mp.protocol.membership import Membership
from dfl_mp.protocol.packs import Pack, PackTable
from dfl_mp.protocol.slots import SlotTable

MAX_HELD = 2
"""Untrained packs that a drafter may hold: one that it computes and one that it copies."""


@dataclass
class OnDisk:
    """What the role has read: ledger lines, checkpoints, the last generation number, packs set aside."""

    ledger: int = 0
    checkpoints: set[int] = field(default_factory=set)
    generation: int = 0
    aside: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Shape:
    """The run's arithmetic. `save_every` 0: only the last step is saved."""

    per_step: int
    num_steps: int
    save_every: int = 0


class Scheduler:
    """See the module."""

    def __init__(self, shape: Shape, disk: OnDisk) -> None:
        self.shape = shape
        self.ledger = disk.ledger
        self.checkpoints = disk.checkpoints | {0}
        self.packs = PackTable(shape.per_step, shape.num_steps, disk.aside)
        self.slots = SlotTable()
        self.group = Membership(disk.generation)
        self.step = 0
        """The lowest step without a Commit."""
        self.lease = 0
        self.reducing: set[str] | None = None
        """Who has reported Reduced, while a Reduce is open."""
        self.saving: tuple[str, int] | None = None
        self.listed: set[str] = set()
        self.dead: set[str] = set()
        self._out: list[Effect] = []

    def form(self, load: int | None = None) -> None:
        """Order the next generation; its number is on disk first (rule 7)."""
        self.reducing = None
        order = self.group.begin(self.step, load)
        self._out.append(PersistGeneration(order.generation))
        for member in order.members:
            self._send(member, order)

    def _schedule(self) -> None:
        self._rewind_if_alone()
        self._admit_joiners()
        self._open_reduce()
        self._lease()
        self._assign()
        self._balance_tail()
        self._save_last()

    def _rewind_if_alone(self) -> None:
        """First start, or the last drafter with state is gone: load the newest checkpoint (rule 23)."""
        if self.group.applied or self.group.forming is not None:
            return
        waiting = {w for w in self.listed - self.dead if role_of(w) == "drafter"}
        if not waiting or waiting != set(self.group.ready_joiners()):
            return
        k = max(self.checkpoints)
        if self.ledger > k:
            self._note("rewound", to=k, **{"from": self.ledger})
        self._out.append(CutLedger(k))
        self.ledger = self.step = k
        for ref in self.packs.restart_at(k):
            self.slots.free(ref.target, ref.slot)
        self.form(load=k)

    def _admit_joiners(self) -> None:
        group = self.group
        free = group.applied and group.forming is None and self.reducing is None
        if free and group.ready_joiners() and group.level_at(self.step) and self.step < self.shape.num_steps:
            self.form()

    def _open_reduce(self) -> None:
        if not self.group.applied or self.group.forming is not None or self.reducing is not None:
            return
        if self.step == self.shape.num_steps:
            return
        if all(p.state in ("trained", "aside") for p in self.packs.of_step(self.step)):
            self.reducing = set()
            for member in sorted(self.group.members):
                self._send(member, m.Reduce(step=self.step, generation=self.group.generation))

    def _lease(self) -> None:
        """Pending packs to free slots, lowest first; the lowest step takes slots from later ones."""
        beyond = -1
        while (pack := self.packs.next_pending(beyond)) is not None:
            slot = self.slots.first_free()
            if slot is None and pack.number // self.shape.per_step == self.step:
                slot = self._take_slot_from_later()
            if slot is None:
                return
            self.slots.take(*slot, pack.number)
            pack.to_leased(*slot)
            self._send(slot[0], m.Compute(pack=pack.number, slot=slot[1]))
            beyond = pack.number

    def _later(self, *states: str) -> list[Pack]:
        """Packs of steps after the lowest, the last first."""
        last = (self.step + 1) * self.shape.per_step - 1
        return sorted((p for p in self.packs if p.number > last and p.state in states), key=lambda p: -p.number)

    def _take_slot_from_later(self) -> tuple[str, int] | None:
        for pack in self._later("ready"):
            assert pack.ref is not None
            slot = pack.ref.target, pack.ref.slot
            pack.to_pending()
            return slot
        held = [p for p in self._later("held") if not p.copied and p.ref is not None]
        held = [p for p in held if p.ref is not None and (p.ref.target, p.ref.slot) in self.slots]
        self._revoke_one(held)
        return None

    def _revoke_one(self, packs: list[Pack]) -> None:
        if packs and not any(p.revoking for p in packs):
            self._revoke(packs[0])

    def _revoke(self, pack: Pack) -> None:
        assert pack.holder is not None
        pack.revoking = True
        self._send(pack.holder, m.Revoke(pack=pack.number, lease=pack.lease))

    def _assign(self) -> None:
        """Ready packs to the members with the fewest (rule 4), lowest first."""
        load = dict.fromkeys(sorted(self.group.members), 0)
        for pack in self.packs.within("held"):
            if pack.holder in load:
                load[pack.holder] += 1
        for pack in self.packs.within("ready"):
            drafter = min(load, key=lambda d: (load[d], d), default=None)
            if drafter is None:
                return
            if load[drafter] >= MAX_HELD:
                if pack.number // self.shape.per_step == self.step:
                    self._revoke_one(self._later("held"))
                return
            self.lease += 1
            load[drafter] += 1
            assert pack.ref is not None
            pack.to_held(drafter, self.lease)
            ring = self.slots.rings[pack.ref.target]
            self._send(drafter, m.Train(pack=pack.number, ref=pack.ref, lease=self.lease, ring=ring))

    def _balance_tail(self) -> None:
        """At the tail of a step an idle drafter gets a pack that another has not begun (rule 3)."""
        if self.step == self.shape.num_steps or len(self.group.applied) < 2:
            return
        step = self.packs.of_step(self.step)
        if any(p.state in ("pending", "ready", "leased") for p in step):
            return
        held = {d: [p for p in step if p.state == "held" and p.holder == d] for d in sorted(self.group.members)}
        if all(held.values()):
            return
        for packs in held.values():
            spare = [p for p in packs if not p.revoking and not p.balanced]
            if spare and len(packs) >= 2:
                spare[-1].balanced = True
                self._revoke(spare[-1])
                return

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def _save_last(self) -> None:
        last = self.shape.num_steps
        if self.step == last == self.ledger and last not in self.checkpoints and self.saving is None:
            self._order_save(last)

    def _order_save(self, steps: int) -> None:
        able = sorted(d for d, a in self.group.applied.items() if a == steps)
        if able:
            self._save_by(able[0], steps)

    def _save_by(self, drafter: str, steps: int) -> None:
        self.saving = (drafter, steps)
        self._send(drafter, m.Save(steps=steps))

    # ---- output -------------------------------------------------------------------------------------------------

    def _send(self, to: str, message: Message) -> None:
        self._out.append(Send(to, message))

    def emit(self, effect: Effect) -> None:
        """For recovery."""
        self._out.append(effect)

    def _note(self, event: str, **fields: Any) -> None:
        self._out.append(Note(event, fields))
