"""Simulated workers around the real machines of `dfl_mp.protocol`, and what their memory really contains.

A worker's threads are events: a begun computation, copy, collective, apply or save ends in a later event; everything
may happen in between. The shadow state (`hist`, `gradient`, `vector`, buffers, slots) is never read by a machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dfl_mp import messages as m
from dfl_mp.protocol.drafter import AllReduce, Apply, Compute, Held, Join, WriteCheckpoint

if TYPE_CHECKING:
    from tests.protocol_world import World

BUFFERS = 2
"""Device buffers of a drafter: one pack is computed, one is copied (rule 4)."""

Step = tuple[tuple[int, ...], int]
"""What one step put into the weights: its packs, and the generation in which they were reduced."""
History = tuple[Step, ...]


class Violation(Exception):
    """A property of the protocol does not hold."""


def statistics(generation: int) -> m.Statistics:
    """The generation rides in `loss`, so that the ledger shows from which lineage a line is."""
    return m.Statistics(
        loss=float(generation),
        lr=0.0,
        grad_norm=0.0,
        tokens=0.0,
        trained_tokens=0.0,
        accept_len_est=0.0,
        data_wait_s=0.0,
        skipped=False,
    )


@dataclass(eq=False)
class Copy:
    """A buffer that is being filled from a slot, or is full. `content` is (pack, seq) or None when torn."""

    held: Held
    buffer: int
    content: tuple[int, int] | None
    running: bool = True


class SimWorker:
    """What target and drafter share: one process, one link."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.link = 0
        """The coordinator that it is connected to; 0: none."""
        self.stuck = self.zombie = False
        self.machine: Any = None

    def flush(self) -> None:
        for message in self.machine.outbox:
            self.sent(message)
            self.world.send_up(self, message)
        self.machine.outbox.clear()

    def sent(self, message: m.Message) -> None:
        """For checks."""

    def receive(self, message: m.Message) -> None:
        self.machine.handle(message)
        self.flush()


class SimTarget(SimWorker):
    def __init__(self, world: World, name: str, num_slots: int) -> None:
        super().__init__(world, name)
        ring = m.RingHandle(kind="shm", path=name, num_slots=num_slots, shape=(1, 1, 1), dtype="float32", checksum=0)
        self.machine = world.variant.target(ring)
        world.memory[name] = [None] * num_slots

    def suspect(self) -> int | None:
        return self.machine.now.pack if self.machine.now else None

    def doing(self) -> str:
        return "forward" if self.machine.now else "idle"

    def events(self) -> Iterator[str]:
        if self.machine.now is not None:
            yield "forward_ends"
        if self.machine.queue and len(self.machine.running) < 2:
            yield "forward"

    def forward(self) -> None:
        now = self.machine.next_compute()
        self.world.memory[self.name][now.slot] = None

    def forward_ends(self) -> None:
        now = self.machine.now
        self.machine.computed()
        self.world.memory[self.name][now.slot] = (now.pack, self.machine.seq)
        self.flush()


class SimDrafter(SimWorker):
    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.machine = world.variant.drafter(world.settings.per_step)
        self.hist: History | None = None
        self.gradient: tuple[int, ...] = ()
        self.vector: Step = ((), 0)
        self.members: tuple[str, ...] = ()
        self.collective: tuple[int, str] | None = None
        self.copies: list[Copy] = []
        self.main_awake = self.copy_awake = True
        self.saving: History = ()

    def receive(self, message: m.Message) -> None:
        self.main_awake = self.copy_awake = True
        super().receive(message)

    def sent(self, message: m.Message) -> None:
        self.main_awake = self.copy_awake = True
        if isinstance(message, m.EpochDropped) and any(
            c.running and c.held.ref.target == message.target for c in self.copies
        ):
            raise Violation("a ring is unmapped under a running copy")

    def suspect(self) -> int | None:
        main = self.machine.main
        return main.pack if isinstance(main, Compute) else None

    def doing(self) -> str:
        if not self.machine.warm:
            return "cold"
        main = self.machine.main
        state = type(main).__name__ if main else "reduced" if self.machine.reduced else "idle"
        pending = "+commit" if self.machine.commit and not isinstance(main, Apply) else ""
        form = "+form" if self.machine.form and not isinstance(main, Join) else ""
        copying = "+copying" if any(c.running for c in self.copies) else ""
        counts = "" if self.machine.applied is not None and self.machine.admitted else "-uncounted"
        return state + counts + pending + form + copying

    def events(self) -> Iterator[str]:
        machine = self.machine
        if not machine.warm:
            yield "compiled"
        elif machine.main is None:
            if self.main_awake:
                yield "work"
        elif isinstance(machine.main, Join | AllReduce):
            yield from self._collective_events()
        else:
            yield "main_ends"
        if self.copy_awake:
            yield "copy"
        if copy := next((c for c in self.copies if c.running), None):
            target = copy.held.ref.target
            if target not in self.world.unreadable:
                yield "copy_ends"
            if target in self.world.unreadable or target not in self.world.workers:
                yield "copy_fails"

    def _collective_events(self) -> Iterator[str]:
        members, inside = self.world.collectives[self.collective]
        if all(d in inside for d in members):
            yield "collected"
        if self.machine.must_abort:
            yield "aborted"
        elif any(d not in self.world.workers for d in members):
            yield "peer_lost"

    # ---- main thread ---------------------------------------------------------------------------------------------

    def compiled(self) -> None:
        self.machine.warmed()
        self.flush()

    def work(self) -> None:
        match self.machine.next_work():
            case None:
                self.main_awake = False
            case Join(order):
                self._enter((order.generation, "form"), order.members, self.hist)
            case AllReduce(step, generation):
                self._enter((generation, str(step)), self.members, self.gradient)
            case Compute(pack):
                copy = next(c for c in self.copies if c.held.number == pack and c.held is self.machine.held[pack])
                if copy.content != (pack, copy.held.ref.seq) and not self.zombie:
                    raise Violation("trained on an overwritten slot")
            case WriteCheckpoint(steps):
                self.saving = (self.hist or ())[:steps]

    def _enter(self, key: tuple[int, str], members: tuple[str, ...], value: Any) -> None:
        known, inside = self.world.collectives.setdefault(key, (members, {}))
        if known != members:
            raise Violation("the FileStore of a generation is used by another membership")
        if self.name in inside:
            raise Violation("a collective of a generation is entered twice")
        inside[self.name] = value
        self.collective = key

    def main_ends(self) -> None:
        match self.machine.main:
            case Compute(pack):
                self.gradient += (pack,)
                self.machine.computed(pack)
            case Apply():
                self._apply()
            case WriteCheckpoint(steps):
                self.world.wrote_checkpoint(self, steps, self.saving)
        self.flush()

    def _apply(self) -> None:
        packs, generation = self.vector
        claimed = self.machine.commit.packs
        if len(set(packs)) != len(packs):
            raise Violation("a pack twice in one vector")
        if packs != claimed:
            raise Violation("the vector does not hold the packs that the commit names")
        assert self.hist is not None
        self.world.check_step(len(self.hist), packs)
        self.hist += ((packs, generation),)
        self.gradient = ()
        self.machine.has_applied(statistics(generation))
        self.world.applied(self)

    def collected(self) -> None:
        """The collective has ended well; a receiver's state is void before the new one is whole."""
        _, inside = self.world.collectives[self.collective]
        main = self.machine.main
        if isinstance(main, AllReduce):
            held_before = self.machine.reduced
            self.machine.all_reduced(main)
            if self.machine.reduced is not None and held_before is None:
                self.vector = (tuple(sorted(n for part in inside.values() for n in part)), main.generation)
        else:
            order = main.order
            replaced = order.load is not None or self.name in order.receivers
            if replaced and self.machine.applied is not None:
                self.machine.void()
                self.hist, self.gradient = None, ()
                return
            self._join(order, inside, replaced)
        self.flush()

    def _join(self, order: m.Form, inside: dict[str, Any], replaced: bool) -> None:
        if order.load is not None:
            self.hist = self.world.load_checkpoint(order.load)
        elif replaced:
            self.hist = inside[order.source]
        if self.hist is None:
            raise Violation("broadcast from a member without state")
        if replaced:
            self.gradient = ()
        self.members = order.members
        self.machine.joined(order, len(self.hist), replaced)

    def aborted(self) -> None:
        self.machine.aborted()
        self.flush()
        self.main_awake = True

    peer_lost = aborted
    times_out = aborted

    # ---- copy thread ---------------------------------------------------------------------------------------------

    def copy(self) -> None:
        self.machine.views_closed()
        held = self.machine.next_copy()
        self.flush()
        if held is None:
            self.copy_awake = False
            return
        mine = [*self.machine.held.values(), *self.machine.orphans]
        self.copies = [c for c in self.copies if c.running or any(c.held is h for h in mine)]
        used = {c.buffer for c in self.copies if any(c.held is h for h in mine)}
        buffer = next((b for b in range(BUFFERS) if b not in used), None)
        if buffer is None:
            raise Violation("no buffer is free for a copy")
        content = self.world.memory[held.ref.target][held.ref.slot]
        self.copies.append(Copy(held, buffer, content))

    def copy_ends(self) -> None:
        copy = next(c for c in self.copies if c.running)
        copy.running = False
        if copy.content != self.world.memory[copy.held.ref.target][copy.held.ref.slot]:
            copy.content = None
        for other in self.copies:
            if other is not copy and other.buffer == copy.buffer and copy.held is not other.held:
                other.content = None
        self.copy_awake = self.main_awake = True
        self.machine.copy_done(copy.held)
        self.flush()

    def copy_fails(self) -> None:
        copy = next(c for c in self.copies if c.running)
        self.copies.remove(copy)
        self.copy_awake = self.main_awake = True
        self.machine.copy_failed(copy.held, "cannot be mapped")
        self.flush()
