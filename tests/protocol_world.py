"""A world around the protocol: links, launcher, coordinator process, disk. Every nondeterminism is an event.

`events()` lists what may happen now, `do(event)` lets it happen and checks the properties. Faults are events that are
not listed; see the methods under "faults". A list of events replays a schedule.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dfl_mp import messages as m
from dfl_mp.protocol import effects as e
from dfl_mp.protocol.coordinator import Coordinator
from dfl_mp.protocol.drafter import AllReduce, Compute, Drafter, Join
from dfl_mp.protocol.scheduler import OnDisk, Shape
from dfl_mp.protocol.target import Target
from tests.protocol_workers import History, SimDrafter, SimTarget, SimWorker, Step, Violation

Event = tuple[Any, ...]


@dataclass(frozen=True)
class Settings:
    """One small run. `poison`: a pack that crashes whoever computes it. `late`: the last drafter is added later.
    `unreadable`: no drafter can map the ring of the first target until that is started again.
    `wire`: messages travel as bytes. `retold`: the launcher outlives coordinators and tells each of all the dead; if
    not, it is another launcher that has not seen them."""

    targets: int = 1
    slots: int = 1
    drafters: int = 2
    per_step: int = 2
    steps: int = 3
    save_every: int = 2
    poison: int | None = None
    late: bool = False
    unreadable: bool = False
    wire: bool = False
    retold: bool = False


@dataclass(frozen=True)
class Variant:
    """The machines under test, or some with a rule switched off; `off` are the rules that the world itself keeps."""

    coordinator: type[Coordinator] = Coordinator
    drafter: type[Drafter] = Drafter
    target: type[Target] = Target
    off: frozenset[str] = frozenset()


@dataclass
class Disk:
    ledger: list[Step] = field(default_factory=list)
    checkpoints: dict[int, History] = field(default_factory=lambda: {0: ()})
    folders: dict[str, History] = field(default_factory=dict)
    generation: int = 0
    aside: set[int] = field(default_factory=set)


class World:
    """See the module."""

    def __init__(self, settings: Settings, variant: Variant | None = None) -> None:
        self.settings, self.variant = settings, variant or Variant()
        self.shape = Shape(settings.per_step, settings.steps, settings.save_every)
        self.disk = Disk()
        self.workers: dict[str, SimWorker] = {}
        """Processes that exist, zombies included."""
        self.memory: dict[str, list[tuple[int, int] | None]] = {}
        """(pack, seq) in each slot of each target that ever lived; None while it is written."""
        self.collectives: dict[tuple[int, str], tuple[tuple[str, ...], dict[str, Any]]] = {}
        self.unreadable = {"target-0.1"} if settings.unreadable else set()
        self.up: dict[str, deque[m.Message]] = {}
        self.down: dict[str, deque[m.Message]] = {}
        self.coordinator: Coordinator | None = None
        self.number = 0
        """Of the coordinator's process."""
        self.cut: int | None = None
        """Armed: the coordinator is killed after so many effects of its next list."""
        self.incarnation: Counter[str] = Counter()
        self.alive: list[str] = []
        """What the launcher believes."""
        self.unnoticed: list[tuple[str, int | None]] = []
        self.fallen: list[m.Died] = []
        self.to_start: list[str] = []
        self.overdue = 0
        """Collectives that raised though everyone lives: the coordinator's deadline will pass."""
        self.killed = 0
        """How often the coordinator died by a fault."""
        self.coverage: Counter[str] = Counter()
        last = settings.drafters - (1 if settings.late else 0)
        for name in [f"target-{i}" for i in range(settings.targets)] + [f"drafter-{i}" for i in range(last)]:
            self._start(name)

    # ---- events --------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        out: list[Event] = []
        if self.coordinator is None:
            out.append(("start_coordinator",))
        else:
            out += [("to_coordinator", name) for name, queue in self.up.items() if queue]
            if self.overdue and (self.coordinator.group.forming or self.coordinator.reducing is not None):
                out.append(("deadline",))
        for name, worker in self.workers.items():
            if worker.stuck:
                out.append(("kill_stuck", name))
                continue
            if self.down.get(name):
                out.append(("to_worker", name))
            if self.coordinator is not None and worker.link != self.number:
                out.append(("connect", name))
            out += [("act", name, what) for what in worker.events()]
        out += [("notice", name) for name, _ in self.unnoticed]
        out += [("restart", name) for name in self.to_start]
        return out

    def kind(self, event: Event) -> str:
        """The event's kind for weights and coverage; a message counts by its class."""
        if event[0] == "act":
            return str(event[2])
        if event[0] in ("to_coordinator", "to_worker"):
            queue = (self.up if event[0] == "to_coordinator" else self.down)[event[1]]
            return type(queue[0]).__name__
        return str(event[0])

    def do(self, event: Event) -> None:
        """Raises Violation."""
        try:
            getattr(self, event[0])(*event[1:])
            self._check()
        except AssertionError as error:
            raise Violation(f"assertion of a machine: {error}") from error

    def act(self, name: str, what: str) -> None:
        worker = self.workers[name]
        computed = worker.suspect() if what in ("main_ends", "forward_ends") else None
        if computed is not None and computed == self.settings.poison and not worker.zombie:
            self.coverage["poisoned"] += 1
            self.kill(name, 99, own=True)
        else:
            getattr(worker, what)()

    def to_coordinator(self, name: str) -> None:
        assert self.coordinator is not None
        message = self.up[name].popleft()
        if isinstance(message, m.RingUnreadable):
            self._kill_unreadable(message.target)
        else:
            self._carry_out(self.coordinator.handle(name, message))

    def to_worker(self, name: str) -> None:
        self.workers[name].receive(self.down[name].popleft())

    def connect(self, name: str) -> None:
        """A new link; nothing of the old one is acted on, except (rule 13 off) what the worker still reads."""
        worker = self.workers[name]
        if "oldlink" not in self.variant.off:
            self.down.pop(name, None)
        worker.link = self.number
        if isinstance(worker, SimDrafter):
            worker.main_awake = worker.copy_awake = True
        self.send_up(worker, worker.machine.hello())

    def send_up(self, worker: SimWorker, message: m.Message) -> None:
        if self.coordinator is not None and worker.link == self.number:
            self.up.setdefault(worker.name, deque()).append(self._travelled(message))

    def _travelled(self, message: m.Message) -> m.Message:
        return m.decode(m.encode(message)) if self.settings.wire else message

    def _kill_unreadable(self, target: str) -> None:
        """The role has a target killed whose ring cannot be read."""
        worker = self.workers.get(target)
        if worker is not None and not worker.zombie:
            worker.stuck = True

    def deadline(self) -> None:
        assert self.coordinator is not None
        self.overdue -= 1
        self._carry_out(self.coordinator.form_again())

    def ask_checkpoint(self) -> None:
        if self.coordinator is not None and self.coordinator.recovered:
            self._carry_out(self.coordinator.save_now())

    # ---- launcher ------------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        self.incarnation[name] += 1
        full = f"{name}.{self.incarnation[name]}"
        made = SimTarget(self, full, self.settings.slots) if name.startswith("target") else SimDrafter(self, full)
        self.workers[full] = made
        self.alive.append(full)
        self._tell(m.Started(worker=full))

    def _tell(self, message: m.Message) -> None:
        if self.coordinator is not None:
            self.up.setdefault(m.LAUNCHER, deque()).append(message)

    def notice(self, name: str) -> None:
        entry = next(u for u in self.unnoticed if u[0] == name)
        self.unnoticed.remove(entry)
        self.alive.remove(name)
        self.to_start.append(m.name_of(name))
        suspect = None if "suspect" in self.variant.off else entry[1]
        died = m.Died(worker=name, suspect=suspect)
        self.fallen.append(died)
        self._tell(died)

    def restart(self, name: str) -> None:
        self.to_start.remove(name)
        self._start(name)

    def add_late(self) -> None:
        self._start(f"drafter-{self.settings.drafters - 1}")

    # ---- coordinator's process -----------------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        self.number += 1
        disk = self.disk
        read = OnDisk(len(disk.ledger), set(disk.checkpoints), disk.generation, set(disk.aside))
        self.coordinator = self.variant.coordinator(self.shape, read)
        self.up.clear()
        self._tell(m.Alive(workers=tuple(self.alive)))
        for died in self.fallen if self.settings.retold else ():
            self._tell(died)

    def _carry_out(self, effects: list[e.Effect]) -> None:
        for done, effect in enumerate(effects):
            if self.cut is not None and done == min(self.cut, len(effects) - 1):
                self.kill_coordinator((99,))
                return
            if isinstance(effect, e.Restart):
                self.coverage["restarted itself"] += 1
                self._end_coordinator((99,))
                return
            self._carry_out_one(effect)

    def _carry_out_one(self, effect: e.Effect) -> None:
        disk = self.disk
        match effect:
            case e.Send():
                worker = self.workers.get(effect.to)
                if worker is not None and worker.link == self.number:
                    self.down.setdefault(effect.to, deque()).append(self._travelled(effect.message))
                if isinstance(effect.message, m.Revoke):
                    self.coverage["revoke"] += 1
            case e.PersistGeneration():
                disk.generation = 0 if "generation" in self.variant.off else effect.number
            case e.PersistAside():
                disk.aside.add(effect.pack)
                self.coverage["aside"] += 1
            case e.AppendLedger():
                if effect.step != len(disk.ledger):
                    raise Violation("a line of the ledger is missing or written twice")
                disk.ledger.append((effect.packs, int(effect.statistics.loss)))
            case e.CutLedger():
                self._cut_ledger(effect.steps)
            case e.Publish():
                self._publish(effect.steps, effect.folder)
            case e.Note():
                self.coverage[effect.event] += 1

    def _cut_ledger(self, steps: int) -> None:
        if steps > len(self.disk.ledger):
            raise Violation("a checkpoint is newer than the ledger")
        del self.disk.ledger[steps:]
        if "cut_checkpoints" not in self.variant.off:
            self.disk.checkpoints = {k: h for k, h in self.disk.checkpoints.items() if k <= steps}

    def _publish(self, steps: int, folder: str) -> None:
        content = self.disk.folders[folder]
        if list(content) != self.disk.ledger[:steps]:
            raise Violation("a published checkpoint differs from the ledger")
        self.disk.checkpoints[steps] = content

    def wrote_checkpoint(self, drafter: SimDrafter, steps: int, content: History) -> None:
        folder = f"{drafter.name}/{steps}"
        self.disk.folders[folder] = content
        if "publish" in self.variant.off:
            self.disk.checkpoints[steps] = content
        drafter.machine.saved(steps, folder)

    def load_checkpoint(self, steps: int) -> History:
        content = self.disk.checkpoints.get(steps)
        if content is None:
            raise Violation("the checkpoint to load does not exist")
        return content

    def applied(self, drafter: SimDrafter) -> None:
        """Rule 20 off: each drafter saves when it applies, and the checkpoint is visible at once."""
        hist = drafter.hist or ()
        if "save" in self.variant.off and len(hist) % max(1, self.settings.save_every) == 0:
            self.disk.checkpoints[len(hist)] = hist

    # ---- faults --------------------------------------------------------------------------------------------------

    def kill(self, name: str, keep: int, own: bool = False) -> None:
        """SIGKILL (or a crash of its own); the first `keep` of its queued messages still arrive."""
        worker = self.workers.pop(name)
        if name in self.up:
            self.up[name] = deque(list(self.up[name])[:keep])
        self.down.pop(name, None)
        if not worker.zombie:
            self.unnoticed.append((name, worker.suspect() if own else None))

    def kill_stuck(self, name: str) -> None:
        self.kill(name, 99, own=True)

    def stick(self, name: str) -> None:
        self.workers[name].stuck = True

    def zombify(self, name: str) -> None:
        """The launcher believes that it reaped the process, which goes on."""
        self.workers[name].zombie = True
        self.unnoticed.append((name, None))

    def break_link(self, name: str, keep: int) -> None:
        """Both processes live; the first `keep` messages on the way up still arrive."""
        if name in self.up:
            self.up[name] = deque(list(self.up[name])[:keep])
        self.down.pop(name, None)
        self.workers[name].link = 0

    def raise_in_collective(self, name: str) -> None:
        """A collective times out though everyone lives."""
        worker = self.workers[name]
        assert isinstance(worker, SimDrafter)
        worker.times_out()
        self.overdue += 1

    def kill_coordinator(self, keeps: tuple[int, ...]) -> None:
        self.killed += 1
        self._end_coordinator(keeps)

    def arm_kill(self, after: int) -> None:
        self.cut = after

    def _end_coordinator(self, keeps: tuple[int, ...]) -> None:
        for i, name in enumerate(sorted(self.down)):
            worker = self.workers.get(name)
            if worker is not None and worker.link == self.number:
                self.down[name] = deque(list(self.down[name])[: keeps[i % len(keeps)]])
        self.up.clear()
        self.coordinator = self.cut = None

    def possible_faults(self) -> Iterator[str]:
        """Names of workers that a fault may hit."""
        return (name for name, worker in self.workers.items() if not worker.stuck and not worker.zombie)

    def in_collective(self, name: str) -> bool:
        worker = self.workers[name]
        return isinstance(worker, SimDrafter) and isinstance(worker.machine.main, Join | AllReduce)

    def computing(self, name: str) -> bool:
        worker = self.workers[name]
        return isinstance(worker, SimDrafter) and isinstance(worker.machine.main, Compute)

    def phase(self) -> str:
        """What the coordinator is doing, for coverage."""
        c = self.coordinator
        if c is None:
            return "down"
        if not c.recovered:
            return "recovering"
        if c.group.forming is not None:
            return "forming"
        if c.reducing is not None:
            return "reducing"
        return "training" if c.group.level_at(c.step) else "committing"

    # ---- properties ----------------------------------------------------------------------------------------------

    def check_step(self, step: int, packs: tuple[int, ...]) -> None:
        first = step * self.settings.per_step
        want = range(first, first + self.settings.per_step)
        if any(n not in want for n in packs):
            raise Violation("a pack of another step in the vector")
        if any(n not in packs and n not in self.disk.aside for n in want):
            raise Violation("a pack is missing from the vector")

    def _check(self) -> None:
        gone = {name for name, _ in self.unnoticed}
        hists = [
            w.hist
            for w in self.workers.values()
            if isinstance(w, SimDrafter) and w.hist is not None and not w.zombie and w.name not in gone
            if w.machine.admitted and w.machine.applied is not None
        ]
        for hist in hists:
            first = hists[0]
            both = min(len(hist), len(first))
            if hist[:both] != first[:both] or abs(len(hist) - len(first)) > 1:
                raise Violation("live members differ")
            both = min(len(hist), len(self.disk.ledger))
            if list(hist[:both]) != self.disk.ledger[:both]:
                raise Violation("the ledger differs from a live drafter")
        self._check_checkpoints()

    def _check_checkpoints(self) -> None:
        for steps, content in self.disk.checkpoints.items():
            if steps > len(self.disk.ledger):
                raise Violation("a checkpoint is newer than the ledger")
            if content[-1:] != tuple(self.disk.ledger[steps - 1 : steps]) or len(content) != steps:
                raise Violation("a checkpoint differs from the ledger")

    @property
    def finished(self) -> bool:
        return self.coordinator is not None and self.coordinator.finished

    def check_finished(self) -> None:
        """The final lineage: every pack once, in ledger, checkpoint and weights."""
        disk, steps = self.disk, self.settings.steps
        counted = sorted(n for packs, _ in disk.ledger for n in packs)
        every = set(range(steps * self.settings.per_step))
        if len(disk.ledger) != steps or len(set(counted)) != len(counted) or every - set(counted) - disk.aside:
            raise Violation("the final lineage does not hold every pack once")
        if list(disk.checkpoints[steps]) != disk.ledger:
            raise Violation("the last checkpoint differs from the ledger")
        for worker in self.workers.values():
            if isinstance(worker, SimDrafter) and not worker.zombie and worker.machine.admitted:
                hist = list(worker.hist or ())
                if worker.name in self.alive and worker.machine.applied is not None and hist != disk.ledger:
                    raise Violation("a live drafter differs from the final ledger")

    def check_quiet(self) -> None:
        """When nothing is on the way any more: no ring of a dead target is mapped."""
        for worker in self.workers.values():
            if isinstance(worker, SimDrafter) and not worker.zombie:
                dead = worker.machine.mapped - set(self.alive)
                if dead:
                    raise Violation("a drafter maps the ring of a dead target")
