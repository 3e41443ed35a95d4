"""The drafter's state machine. Pure; guarded by its role's lock, so that a Hello is one consistent snapshot.

Three parties use it: the control thread feeds messages (`handle`), the copy thread takes `next_copy` and reports
`copy_done`, the main thread takes `next_work` and reports what it did. Each call may leave messages for the
coordinator in `outbox`.

    assigned -> copying -> copied -> computing -> trained (in the gradient)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dfl_mp import messages as m
from dfl_mp.messages import Message


@dataclass
class Held:
    """A pack in hand. `release`: give it back when its copy has ended (rule 2)."""

    number: int
    ref: m.SlotRef
    ring: m.RingHandle
    lease: int
    state: Literal["assigned", "copying", "copied", "computing"] = "assigned"
    release: bool = False


@dataclass(frozen=True)
class Compute:
    pack: int


@dataclass(frozen=True)
class Join:
    """Build the generation of the order, then `formed`."""

    order: m.Form


@dataclass(frozen=True)
class AllReduce:
    step: int
    generation: int


@dataclass(frozen=True)
class Apply:
    step: int


@dataclass(frozen=True)
class WriteCheckpoint:
    steps: int


Work = Compute | Join | AllReduce | Apply | WriteCheckpoint


class Drafter:
    """See the module."""

    def __init__(self, per_step: int) -> None:
        self.per_step = per_step
        self.warm = False
        self.applied: int | None = None
        self.admitted = False
        self.last: tuple[int, ...] = ()
        self.statistics: m.Statistics | None = None
        self.generation = 0
        self.reduced: tuple[int, int] | None = None
        self.trained: list[int] = []
        self.held: dict[int, Held] = {}
        self.orphans: list[Held] = []
        """Copies that go on for packs that are not ours any more; their buffers are busy until they end."""
        self.mapped: set[str] = set()
        """Targets whose ring this drafter was told of and has not dropped."""
        self.unreadable: set[str] = set()
        self.closing: list[str] = []
        self.dropping: list[m.EpochDropped] = []
        """To be said once the views of these targets' rings are closed."""
        self.form: m.Form | None = None
        self.reduce: m.Reduce | None = None
        self.commit: m.Commit | None = None
        self.save: int | None = None
        self.main: Work | None = None
        """What the main thread does now."""
        self.outbox: list[Message] = []
        self.stopped = False

    # ---- link ----------------------------------------------------------------------------------------------------

    def hello(self) -> m.DrafterHello:
        """First word on a new link; what was to be said on the old one is in it (rule 13)."""
        self.outbox.clear()
        self.closing.clear()
        self.dropping.clear()
        self.unreadable.clear()  # tried again, so that the new coordinator is told
        self.reduce = None
        if not isinstance(self.main, Join):
            self.form = None
        counts = self.applied is not None and self.admitted
        held = tuple(
            m.HeldPack(
                pack=h.number,
                state="copied" if h.state in ("copied", "computing") else "assigned",
                ref=h.ref,
                lease=h.lease,
            )
            for h in self.held.values()
        )
        return m.DrafterHello(
            warm=self.warm,
            applied=self.applied if counts else None,
            last=self.last if counts else (),
            statistics=self.statistics if counts else None,
            generation=self.generation,
            reduced=self.reduced,
            trained=tuple(self.trained),
            held=held,
            epochs=tuple(sorted(self.mapped)),
        )

    def handle(self, message: Message) -> None:
        """One message of the coordinator."""
        match message:
            case m.Train():
                self.mapped.add(message.ref.target)
                held = Held(message.pack, message.ref, message.ring, message.lease)
                self.held[message.pack] = held
            case m.Revoke():
                self._on_revoke(message)
            case m.EpochClosed():
                self.closing.append(message.target)
                self._drop_epochs()
            case m.Form():
                self.form, self.reduce = message, None
                if self.commit is None:
                    self.reduced = None
            case m.Admitted():
                self.admitted = self.admitted or message.generation == self.generation
            case m.Reduce():
                self._on_reduce(message)
            case m.Commit():
                self._on_commit(message)
            case m.Save():
                self.save = message.steps
            case m.Stop():
                self.stopped = True

    @property
    def must_abort(self) -> bool:
        """The main thread is in a collective of a generation that is superseded."""
        if self.form is None:
            return False
        if isinstance(self.main, Join):
            return self.main.order.generation != self.form.generation
        return isinstance(self.main, AllReduce)

    def _on_revoke(self, message: m.Revoke) -> None:
        held = self.held.get(message.pack)
        if held is None or held.lease != message.lease:
            return
        if held.state == "copying":
            held.release = True
        elif held.state != "computing":
            self._release(held)

    def _release(self, held: Held) -> None:
        del self.held[held.number]
        self.outbox.append(m.Released(pack=held.number, lease=held.lease))

    def _on_reduce(self, message: m.Reduce) -> None:
        """Fits the step that is next once a pending commit is in the weights: others may have trained all its packs."""
        after = self.applied if self.commit is None else self.commit.step + 1
        fits = message.generation == self.generation and message.step == after and self.form is None
        free = self.reduced is None or self.commit is not None
        if fits and free and not isinstance(self.main, Join | AllReduce):
            self.reduce = message

    def _on_commit(self, message: m.Commit) -> None:
        if self.applied is not None and self.applied > message.step:
            assert self.statistics is not None
            if message.step == self.applied - 1:
                self.outbox.append(m.Applied(step=message.step, packs=self.last, statistics=self.statistics))
            return
        if self.commit is None:
            assert self.reduced is not None and self.reduced[0] == message.step, "Commit of a buffer that is not held"
            self.commit = message

    # ---- copy thread -----------------------------------------------------------------------------------------------

    def next_copy(self) -> Held | None:
        """The lowest pack to copy now; marks it as being copied."""
        if self.orphans or any(h.state == "copying" for h in self.held.values()):
            return None
        waiting = [h for h in self.held.values() if h.state == "assigned" and h.ref.target not in self.unreadable]
        if not waiting:
            return None
        held = min(waiting, key=lambda h: h.number)
        held.state = "copying"
        return held

    def copy_done(self, held: Held) -> None:
        """The copy has ended on the host's clock."""
        if held in self.orphans:
            self.orphans.remove(held)
        else:
            held.state = "copied"
            self.outbox.append(m.Copied(pack=held.number, lease=held.lease))
            if held.release:
                self._release(held)
        self._drop_epochs()

    def copy_failed(self, held: Held, reason: str) -> None:
        """The ring could not be read: nothing is copied from it until EpochClosed, and the coordinator is told."""
        if held.ref.target not in self.unreadable:
            self.outbox.append(m.RingUnreadable(target=held.ref.target, reason=reason))
        if held in self.orphans:
            self.orphans.remove(held)
        else:
            held.state = "assigned"
            self.unreadable.add(held.ref.target)
            if held.release:
                self._release(held)
        self._drop_epochs()

    def _drop_epochs(self) -> None:
        """Let go of dead targets that no copy reads any more: the copy thread closes the views that `mapped` does not
        name, then calls `views_closed`."""
        reading = {h.ref.target for h in [*self.held.values(), *self.orphans] if h.state == "copying"}
        for target in [t for t in self.closing if t not in reading]:
            self.closing.remove(target)
            self.mapped.discard(target)
            self.unreadable.discard(target)
            gone = [h for h in self.held.values() if h.ref.target == target and h.state == "assigned"]
            for held in gone:
                del self.held[held.number]
            released = tuple((h.number, h.lease) for h in gone)
            self.dropping.append(m.EpochDropped(target=target, released=released))

    def views_closed(self) -> None:
        """No ring is mapped any more that `mapped` does not name."""
        self.outbox += self.dropping
        self.dropping.clear()

    # ---- main thread -----------------------------------------------------------------------------------------------

    def next_work(self) -> Work | None:
        """What the main thread does next, most urgent first; it is `main` until reported."""
        assert self.main is None
        self.main = self._choose()
        return self.main

    def _choose(self) -> Work | None:
        if self.commit is not None:
            return Apply(self.commit.step)
        if self.save is not None:
            steps, self.save = self.save, None
            if steps == self.applied:
                return WriteCheckpoint(steps)
        if self.form is not None:
            return Join(self.form)
        if self.reduce is not None:
            return AllReduce(self.reduce.step, self.reduce.generation)
        if self.applied is None or self.reduced is not None:
            return None
        ready = [h for h in self.held.values() if h.state == "copied" and h.number // self.per_step == self.applied]
        if not ready:
            return None
        held = min(ready, key=lambda h: h.number)
        held.state = "computing"
        return Compute(held.number)

    def warmed(self) -> None:
        """The step is compiled."""
        self.warm = True
        self.outbox.append(m.Warm())

    def computed(self, pack: int) -> None:
        """The pack is in the gradient, unless a Form with another state took it away meanwhile."""
        self.main = None
        held = self.held.pop(pack, None)
        if held is not None:
            self.trained.append(pack)
            self.outbox.append(m.Trained(pack=pack, lease=held.lease))

    def all_reduced(self, work: AllReduce) -> None:
        """The reduced buffer is held, unless it is superseded."""
        self.main = None
        if self.form is not None:
            return
        self.reduce = None
        self.reduced = (work.step, work.generation)
        self.outbox.append(m.Reduced(step=work.step, generation=work.generation))

    def aborted(self) -> None:
        """The collective raised; the next order decides. The same generation is never entered twice."""
        if isinstance(self.main, Join) and self.form == self.main.order:
            self.form = None
        self.main = None
        self.reduce = None

    def void(self) -> None:
        """The state is about to be overwritten: until `joined` there is none, and what was held is not ours."""
        self.applied, self.admitted, self.reduced = None, False, None
        self.trained.clear()
        self.orphans += [h for h in self.held.values() if h.state == "copying"]
        self.held.clear()

    def joined(self, order: m.Form, applied: int, replaced: bool) -> None:
        """In the generation with the state of `applied` steps; `replaced`: the state is new, what was held is void."""
        self.main = None
        self.generation = order.generation
        if replaced:
            self.void()
            self.applied = applied
        if self.form is not None and self.form.generation == order.generation:
            self.form = None
            self.outbox.append(m.Formed(generation=order.generation, applied=applied))

    def has_applied(self, statistics: m.Statistics) -> None:
        """The commit is in the weights."""
        assert self.commit is not None and self.applied is not None
        self.main = None
        self.applied += 1
        self.last, self.statistics = self.commit.packs, statistics
        self.commit = self.reduced = None
        self.trained.clear()
        self.outbox.append(m.Applied(step=self.applied - 1, packs=self.last, statistics=statistics))

    def saved(self, steps: int, folder: str) -> None:
        """The checkpoint lies complete in `folder`."""
        self.main = None
        self.outbox.append(m.Saved(steps=steps, folder=folder))
