"""The coordinator's state machine: leases packs, assigns them, orders reduce and commit, forms generations, rebuilds
itself from Hellos. Pure: messages in, effects out; no socket, no clock, no disk.

Life of a run: `start` from what is on disk -> Alive from the launcher -> a Hello (or Died) of every listed worker ->
`recover` -> each message changes the tables, then `_schedule` does everything that has become possible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dfl_mp import messages as m
from dfl_mp.messages import LAUNCHER, Message, incarnation_of, is_worker, name_of, role_of
from dfl_mp.protocol import recovery
from dfl_mp.protocol.effects import (
    AppendLedger,
    Effect,
    PersistAside,
    Publish,
    Restart,
)
from dfl_mp.protocol.packs import Pack
from dfl_mp.protocol.scheduler import OnDisk, Scheduler, Shape

CRASHES_TO_SET_ASIDE = 2
MAX_EARLY = 1024
"""Workers that said Hello before the launcher listed them, and messages of one of them that are kept."""
FROM_LAUNCHER = (m.Alive, m.Started, m.Died, m.Shutdown, m.Answer)
FROM_TARGET_ONLY = (m.TargetHello, m.FeaturesReady)
FROM_NO_WORKER = (
    *FROM_LAUNCHER,
    *(m.Compute, m.Train, m.Revoke, m.EpochClosed, m.Form, m.Admitted, m.Reduce, m.Commit, m.Save, m.Stop),
    *(m.Progress, m.KillWorker, m.Finished, m.Command),
)


class Coordinator(Scheduler):
    """See the module. `handle(sender, message)` returns the effects of one message."""

    def __init__(self, shape: Shape, disk: OnDisk) -> None:
        super().__init__(shape, disk)
        self.crashes: dict[int, set[str]] = {}
        """Workers that crashed while they computed the pack; the launcher tells of them again after a restart."""
        self.hellos: dict[str, m.TargetHello | m.DrafterHello] = {}
        self.early: dict[str, m.TargetHello | m.DrafterHello] = {}
        self.kept: list[tuple[str, Message]] = []
        self.awaited: set[str] | None = None
        """Listed workers whose Hello is still missing; None before the launcher's list."""
        self.recovered = False

    # ---- input ---------------------------------------------------------------------------------------------------

    def handle(self, sender: str, message: Message) -> list[Effect]:
        """The effects of one message; a message of a dead incarnation has none (rules 13-15, 19)."""
        if sender == LAUNCHER:
            self._from_launcher(message)
        elif sender in self.dead:
            return []
        elif isinstance(message, m.TargetHello | m.DrafterHello):
            self._on_hello(sender, message)
        elif not self.recovered or sender in self.early:
            if sender in self.hellos or sender in self.early:
                self.kept.append((sender, message))
        elif sender in self.hellos:
            self._dispatch(sender, message)
        if not self.recovered and self.awaited == set():
            self._recover()
        if self.recovered:
            self._schedule()
        out, self._out = self._out, []
        return out

    @property
    def finished(self) -> bool:
        """Every step is committed, applied by all members and checkpointed."""
        last = self.shape.num_steps
        return (
            self.recovered
            and self.step == last
            and self.ledger == last
            and bool(self.group.applied)
            and self.group.forming is None
            and self.group.level_at(last)
            and last in self.checkpoints
        )

    def is_past(self, sender: str) -> bool:
        """Whether the sender is a worker known to be dead or replaced: it has woken up late, and has to end."""
        if not is_worker(sender):
            return False
        name, number = name_of(sender), incarnation_of(sender)
        return sender in self.dead or any(name_of(w) == name and incarnation_of(w) > number for w in self.listed)

    def may_speak(self, sender: str, message: Message) -> bool:
        """Whether this is somebody's to say: a known worker what its role says, a new one first Hello, the launcher
        the rest."""
        if sender == LAUNCHER:
            return isinstance(message, FROM_LAUNCHER)
        target = role_of(sender) == "target"
        if isinstance(message, FROM_NO_WORKER) or (isinstance(message, FROM_TARGET_ONLY) and not target):
            return False
        if target and not isinstance(message, (*FROM_TARGET_ONLY, m.Heartbeat)):
            return False
        if isinstance(message, m.TargetHello) and not _slots_fit(message):
            return False
        if sender in self.listed:
            return True
        if sender in self.early:
            return sum(1 for worker, _ in self.kept if worker == sender) < MAX_EARLY
        return isinstance(message, m.TargetHello | m.DrafterHello) and len(self.early) < MAX_EARLY

    def save_now(self) -> list[Effect]:
        """Order a checkpoint of the newest applied step, if a drafter lives and it is not saved yet."""
        if self.saving is None and self.ledger not in self.checkpoints:
            self._order_save(self.ledger)
        out, self._out = self._out, []
        return out

    def form_again(self) -> list[Effect]:
        """The forming generation, or the open reduce, is past its deadline: the next number supersedes it."""
        self.group.give_up()
        if self.group.applied:
            self.form()
        self._schedule()
        out, self._out = self._out, []
        return out

    # ---- launcher, hello, recovery ------------------------------------------------------------------------------

    def _from_launcher(self, message: Message) -> None:
        match message:
            case m.Alive():
                self.listed |= set(message.workers)
                self.awaited = {w for w in message.workers if w not in self.hellos and w not in self.dead}
            case m.Started():
                self.listed.add(message.worker)
            case m.Died():
                self._on_died(message.worker, message.suspect)
        for worker in [w for w in self.early if w in self.listed]:
            self._accept(worker, self.early.pop(worker))

    def _on_hello(self, worker: str, hello: m.TargetHello | m.DrafterHello) -> None:
        self.kept = [k for k in self.kept if k[0] != worker]
        if worker in self.hellos and self.recovered:
            self._out.append(Restart(f"second Hello of {worker}"))
        elif worker not in self.listed:
            self.early[worker] = hello
        else:
            self._accept(worker, hello)

    def _accept(self, worker: str, hello: m.TargetHello | m.DrafterHello) -> None:
        self.hellos[worker] = hello
        if self.recovered:
            self._join(worker, hello)
            self._replay(worker)
        elif self.awaited is not None:
            self.awaited.discard(worker)

    def _recover(self) -> None:
        recovery.rebuild(self)
        self.recovered = True
        self._set_aside()
        for worker in sorted({w for w, _ in self.kept if w in self.hellos}):
            self._replay(worker)

    def _replay(self, worker: str) -> None:
        """What followed the Hello, in order."""
        mine = [msg for w, msg in self.kept if w == worker]
        self.kept = [k for k in self.kept if k[0] != worker]
        for message in mine:
            if worker not in self.dead:
                self._dispatch(worker, message)

    def _join(self, worker: str, hello: m.TargetHello | m.DrafterHello) -> None:
        if isinstance(hello, m.TargetHello):
            self.join_target(worker, hello)
            return
        self.group.joiners.append(worker)
        if hello.warm:
            self.group.warm.add(worker)

    def join_target(self, target: str, hello: m.TargetHello) -> None:
        """Take over a target's slots: full ones whose pack is otherwise pending are ready (rule 17)."""
        self.slots.add(target, hello.ring)
        busy = {slot: n for n, slot in hello.busy}
        for slot, content in enumerate(hello.slots):
            if slot in busy:
                self.slots.take(target, slot, busy[slot])
                pack = self.packs.get(busy[slot])
                if pack is not None and pack.state == "pending":
                    pack.to_leased(target, slot)
            elif content is not None:
                self._adopt(m.SlotRef(target=target, slot=slot, seq=content[1]), content[0])

    def _adopt(self, ref: m.SlotRef, number: int) -> None:
        pack = self.packs.get(number)
        if pack is None:
            return
        if pack.state == "pending":
            pack.to_ready(ref)
            self.slots.take(ref.target, ref.slot, number)
        elif pack.state == "held" and pack.ref == ref and not pack.copied:
            self.slots.take(ref.target, ref.slot, number)

    # ---- workers ------------------------------------------------------------------------------------------------

    def _dispatch(self, sender: str, message: Message) -> None:
        handlers: dict[type[Message], Callable[[str, Any], None]] = {
            m.FeaturesReady: self._on_features_ready,
            m.Copied: self._on_copied,
            m.Trained: self._on_trained,
            m.Released: self._on_released,
            m.EpochDropped: self._on_epoch_dropped,
            m.Warm: self._on_warm,
            m.Formed: self._on_formed,
            m.Reduced: self._on_reduced,
            m.Applied: self._on_applied,
            m.Saved: self._on_saved,
        }
        if type(message) in handlers:
            handlers[type(message)](sender, message)

    def _on_features_ready(self, target: str, message: m.FeaturesReady) -> None:
        if self.slots.pack_in(target, message.slot) != message.pack:
            return
        pack = self.packs.get(message.pack)
        if pack is not None and pack.state == "leased" and pack.holder == target:
            pack.to_ready(m.SlotRef(target=target, slot=message.slot, seq=message.seq))
        else:
            self.slots.free(target, message.slot)

    def _held(self, drafter: str, number: int, lease: int) -> Pack | None:
        """The pack, if the drafter holds it under this lease (rule 1)."""
        pack = self.packs.get(number)
        if pack is None or pack.state != "held" or pack.holder != drafter or pack.lease != lease:
            return None
        return pack

    def _on_copied(self, drafter: str, message: m.Copied) -> None:
        pack = self._held(drafter, message.pack, message.lease)
        if pack is not None and pack.ref is not None:
            pack.copied = True
            self.slots.free(pack.ref.target, pack.ref.slot)

    def _on_trained(self, drafter: str, message: m.Trained) -> None:
        pack = self._held(drafter, message.pack, message.lease)
        if pack is not None:
            pack.to_trained()

    def _on_released(self, drafter: str, message: m.Released) -> None:
        pack = self._held(drafter, message.pack, message.lease)
        if pack is not None:
            self._give_back(pack)

    def _on_epoch_dropped(self, drafter: str, message: m.EpochDropped) -> None:
        for number, lease in message.released:
            self._on_released(drafter, m.Released(pack=number, lease=lease))

    def _on_warm(self, drafter: str, message: m.Warm) -> None:
        self.group.warm.add(drafter)

    def _on_formed(self, drafter: str, message: m.Formed) -> None:
        if self.group.formed(drafter, message.generation, message.applied):
            for member in self.group.admit(self.step):
                self._send(member, m.Admitted(generation=message.generation))
            self._note("generation", generation=message.generation, members=sorted(self.group.members), step=self.step)

    def _on_reduced(self, drafter: str, message: m.Reduced) -> None:
        current = self.reducing is not None and (message.step, message.generation) == (self.step, self.group.generation)
        if self.reducing is None or not current:
            return
        self.reducing.add(drafter)
        if self.reducing >= self.group.members:
            self.reducing = None
            packs = self.counted(self.step)
            self.packs.drop_step(self.step)
            self.step += 1
            for member in sorted(self.group.members):
                self._send(member, m.Commit(step=self.step - 1, packs=packs))

    def counted(self, step: int) -> tuple[int, ...]:
        """The packs of the step that are not set aside."""
        first = step * self.shape.per_step
        return tuple(n for n in range(first, first + self.shape.per_step) if n not in self.packs.aside)

    def _on_applied(self, drafter: str, message: m.Applied) -> None:
        if drafter in self.group.applied:
            self.group.applied[drafter] = max(self.group.applied[drafter], message.step + 1)
        assert message.step <= self.ledger, "a step is applied whose predecessor is not in the ledger"
        late = self.saving is not None and self.saving[0] == drafter and self.saving[1] <= message.step
        if late:
            self.saving = None
        if self.ledger == message.step:
            self.append(message.packs, message.statistics)
            every = self.shape.save_every
            if every and self.ledger % every == 0 and drafter in self.group.applied:
                self._save_by(drafter, self.ledger)
        if late and self.saving is None:  # the Save met a Commit, so the drafter passed over it
            self._save_by(drafter, message.step + 1)

    def append(self, packs: tuple[int, ...], statistics: m.Statistics) -> None:
        """Write the next line of the ledger."""
        line = AppendLedger(self.ledger, packs, statistics, len(self.group.applied), self.group.generation)
        self._out.append(line)
        self.ledger += 1

    def _on_saved(self, drafter: str, message: m.Saved) -> None:
        if self.saving == (drafter, message.steps):
            self.saving = None
        if drafter in self.group.applied and message.steps <= self.ledger:
            self.checkpoints.add(message.steps)
            self._out.append(Publish(message.steps, message.folder))

    def _on_died(self, worker: str, suspect: int | None) -> None:
        self.dead.add(worker)
        self.early.pop(worker, None)
        if suspect is not None:
            self.crashes.setdefault(suspect, set()).add(worker)
        if not self.recovered:
            self.hellos.pop(worker, None)
            if self.awaited is not None:
                self.awaited.discard(worker)
            return
        if role_of(worker) == "target":
            self._target_died(worker)
        else:
            self._drafter_died(worker)
        self._set_aside()

    def _target_died(self, target: str) -> None:
        self.slots.remove(target)
        for pack in self.packs:
            if pack.state in ("leased", "ready") and pack.ref is not None and pack.ref.target == target:
                pack.to_pending()
        for drafter in sorted(w for w in self.hellos if role_of(w) == "drafter" and w not in self.dead):
            self._send(drafter, m.EpochClosed(target=target))

    def _drafter_died(self, drafter: str) -> None:
        for pack in self.packs:
            if pack.holder == drafter and pack.state in ("held", "trained"):
                self._give_back(pack)
        if self.saving is not None and self.saving[0] == drafter:
            self.saving = None
        if self.group.remove(drafter):
            self.reducing = None
            if self.group.applied:
                self.form()

    def _set_aside(self) -> None:
        """A pack that was in two workers that crashed by themselves is set aside (rule 6)."""
        for number in [n for n, workers in self.crashes.items() if len(workers) >= CRASHES_TO_SET_ASIDE]:
            pack = self.packs.get(number)
            if pack is None or pack.state not in ("pending", "ready"):
                continue
            if pack.state == "ready" and pack.ref is not None:
                self.slots.free(pack.ref.target, pack.ref.slot)
            pack.to_aside()
            self.packs.aside.add(number)
            self._out.append(PersistAside(number))
            self._note("pack_set_aside", pack=number)

    def _give_back(self, pack: Pack) -> None:
        """The holder gave it up: ready if its slot still has it (rule 5), else pending."""
        if pack.state == "held" and not pack.copied and pack.ref is not None and pack.ref.target in self.slots.rings:
            pack.to_ready(pack.ref)
        else:
            pack.to_pending()


def _slots_fit(hello: m.TargetHello) -> bool:
    """Whether it speaks of the slots that its ring has."""
    size = hello.ring.num_slots
    return len(hello.slots) == size and all(slot < size for _, slot in hello.busy)
