"""Seeded schedules of the real protocol machines under faults.

    python -m tests.protocol_harness --schedules 20000 --seconds 600 --min-faults 3

A schedule is one small run to its end: SIGKILL of anything at any moment, also between two effects of the coordinator,
with none to all of the victim's messages still delivered; stuck workers, workers that wake up after they were replaced,
broken links, collectives that time out, joiners, a pack that crashes whoever computes it, a ring that cannot be mapped.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tests.protocol_rules_off import patched, variant_without
from tests.protocol_world import Event, Settings, Violation, World

BOUND = 6000
"""Events after the last fault within which the run must be finished."""
HOT = (
    *(
        "Hello",
        "Alive",
        "Died",
        "Form",
        "Formed",
        "Admitted",
        "Reduce",
        "Reduced",
        "Commit",
        "Applied",
        "Save",
        "Saved",
    ),
    *("Revoke", "Released", "EpochClosed", "EpochDropped", "FeaturesReady", "Warm"),
    *("collected", "notice", "connect", "start_coordinator", "copy", "main_ends", "work"),
)
"""Kinds of events right after which a guided schedule injects a fault."""


@dataclass
class Result:
    """`tail`: events after the last fault. `trace` replays the schedule with `World.do`."""

    seed: int
    violation: str | None
    events: int
    faults: int
    coverage: Counter[str]
    tail: int = 0
    settings: Settings = field(default_factory=Settings)
    trace: list[Event] = field(default_factory=list)


def settings_of(rng: random.Random) -> Settings:
    drafters = rng.choice((1, 2, 2, 3, 3))
    per_step, steps = rng.choice((2, 3)), rng.choice((3, 4))
    return Settings(
        targets=rng.choice((1, 1, 2)),
        slots=rng.choice((1, 1, 2)),
        drafters=drafters,
        per_step=per_step,
        steps=steps,
        save_every=rng.choice((0, 1, 2, 3)),
        poison=rng.randrange(per_step * steps) if rng.random() < 0.12 else None,
        late=drafters > 1 and rng.random() < 0.3,
        unreadable=rng.random() < 0.05,
    )


class Schedule:
    """One seed. Chooses the next event by random weights per kind and process, and where the faults fall."""

    def __init__(self, seed: int, settings: Settings | None, world: World, rng: random.Random, faults: int) -> None:
        self.world, self.rng, self.left = world, rng, faults
        self.result = Result(seed, None, 0, 0, Counter(), settings=world.settings)
        self.weights: dict[tuple[str, str], float] = defaultdict(lambda: rng.choice((0.03, 0.2, 1, 1, 5)))
        self.burst = rng.random() < 0.4
        self.guided = rng.random() < 0.5
        self.next_fault = rng.randrange(5, 160)
        self.hot: str | None = None
        self.late = world.settings.late
        self.last_fault = 0
        self.last_kind = ""

    def run(self, bound: int) -> Result:
        result = self.result
        try:
            while not (self.world.finished and self.left == 0):
                self._one(bound)
            result.tail = result.events - self.last_fault
            self.world.check_finished()
            while events := self.world.events():
                self._do(self._pick(events))
                if result.events - self.last_fault > 2 * bound:
                    raise Violation("never quiet after the end")
            self.world.check_quiet()
        except Violation as violation:
            result.violation = str(violation)
        result.coverage += self.world.coverage
        return result

    def _one(self, bound: int) -> None:
        result = self.result
        if self.left and (result.events >= self.next_fault or self.world.finished) and self._is_time():
            self._inject()
            return
        if self.rng.random() < 0.01:
            self._disturb()
        events = self.world.events()
        if not events:
            raise Violation("deadlock")
        self._do(self._pick(events))
        if result.events - self.last_fault > bound:
            raise Violation("livelock")

    def _is_time(self) -> bool:
        if not self.guided or self.world.finished:
            return True
        if self.hot is None:
            self.hot = self.rng.choice(HOT)
        return self.last_kind.endswith(self.hot) or self.result.events > self.next_fault + 80

    def _pick(self, events: list[Event]) -> Event:
        keys = [(self.world.kind(x), x[1] if len(x) > 1 else "") for x in events]
        chosen: int = self.rng.choices(range(len(events)), [self.weights[k] for k in keys])[0]
        self.last_kind = keys[chosen][0]
        return events[chosen]

    def _do(self, event: Event) -> None:
        self.result.events += 1
        self.result.trace.append(event)
        killed = self.world.killed
        self.world.do(event)
        if self.world.killed > killed:
            self.last_fault = self.result.events

    def _inject(self) -> None:
        """One fault, by weights like those of real life."""
        world, rng = self.world, self.rng
        faults: list[Event] = []
        names = list(world.possible_faults())
        for name in names:
            faults += [("kill", name, rng.choice((0, 1, 2, 99)), rng.random() < 0.4)] * 2
            if name.startswith("drafter") or world.workers[name].doing() == "forward":
                faults.append(("stick", name))
            if rng.random() < 0.3:
                faults.append(("zombify", name))
            if rng.random() < 0.3 and world.workers[name].link:
                faults.append(("break_link", name, rng.choice((0, 1, 99))))
        if world.coordinator is not None:
            keeps = tuple(rng.choice((0, 1, 2, 99)) for _ in range(5))
            faults += [("kill_coordinator", keeps)] * max(1, len(names) // 2)
            faults += [("arm_kill", rng.randrange(6))] * max(1, len(names))
        if not faults:
            self.next_fault = self.result.events + 5
            self._do(self._pick(world.events()))
            return
        fault = rng.choice(faults)
        victim = world.workers[fault[1]].doing() if fault[0] not in ("kill_coordinator", "arm_kill") else ""
        role = str(fault[1]).split("-")[0] if victim else "coordinator"
        self.result.coverage[f"at {fault[0]} {role} {victim} / {world.phase()}"] += 1
        self._do(fault)
        self.result.faults += 1
        self.left -= 1
        self.last_fault = self.result.events
        self.hot = None
        self.next_fault = self.result.events + rng.randrange(0, 12 if self.burst else 90)

    def _disturb(self) -> None:
        """What is no fault: a joiner, a person who asks for a checkpoint, a deadline that passes too early."""
        world, rng = self.world, self.rng
        if self.late:
            self.late = False
            self._do(("add_late",))
            return
        inside = [name for name in world.possible_faults() if world.in_collective(name)]
        if inside and rng.random() < 0.3 and self.left:
            self._do(("raise_in_collective", rng.choice(inside)))
        else:
            self._do(("ask_checkpoint",))


def run(
    seed: int,
    config: Settings | None = None,
    rules_off: Iterable[str] = (),
    *,
    min_faults: int = 0,
    bound: int = BOUND,
) -> Result:
    """One schedule to its end. `violation` is None when every property held."""
    rng = random.Random(seed)
    settings = settings_of(rng)
    settings = config if config is not None else replace(settings, retold=seed % 2 == 1)
    faults = rng.choice([n for n in (0, 1, 2, 2, 3, 3, 4, 6, 9) if n >= min_faults] or [min_faults])
    rules_off = tuple(rules_off)
    with patched(rules_off):
        world = World(settings, variant_without(rules_off))
        return Schedule(seed, settings, world, rng, faults).run(bound)


def drive(
    world: World,
    stop: Callable[[World], bool],
    skip: Callable[[Event], bool] = lambda event: False,
    seed: int = 0,
    bound: int = BOUND,
) -> int:
    """Random events, except those to skip, until `stop`. Returns their number; Violation when none is left."""
    rng = random.Random(seed)
    for count in range(bound):
        if stop(world):
            return count
        events = [event for event in world.events() if not skip(event)]
        if not events:
            raise Violation("deadlock")
        world.do(rng.choice(events))
    raise Violation("livelock")


def replay(settings: Settings, trace: list[Event], rules_off: Iterable[str] = ()) -> tuple[str | None, list[Event]]:
    """The violation, and the events that were possible; others are left out."""
    rules_off = tuple(rules_off)
    used: list[Event] = []
    with patched(rules_off):
        world = World(settings, variant_without(rules_off))
        for event in trace:
            if not _possible(world, event):
                continue
            used.append(event)
            try:
                world.do(event)
            except Violation as violation:
                return str(violation), used
    return None, used


def _possible(world: World, event: Event) -> bool:
    match event[0]:
        case "kill" | "stick" | "zombify":
            return event[1] in set(world.possible_faults())
        case "break_link":
            return event[1] in set(world.possible_faults()) and bool(world.workers[event[1]].link)
        case "raise_in_collective":
            return event[1] in world.workers and world.in_collective(event[1])
        case "kill_coordinator" | "arm_kill":
            return world.coordinator is not None
        case "add_late" | "ask_checkpoint":
            return True
    return event in world.events()


def shrink(result: Result, rules_off: Iterable[str] = (), seconds: float = 20.0) -> list[Event]:
    """A shorter schedule with the same violation (not for livelocks)."""
    trace, rules_off, end = result.trace, tuple(rules_off), time.monotonic() + seconds
    size = max(1, len(trace) // 2)
    while size and time.monotonic() < end:
        at, changed = 0, False
        while at < len(trace) and time.monotonic() < end:
            what, used = replay(result.settings, trace[:at] + trace[at + size :], rules_off)
            if what == result.violation and len(used) < len(trace):
                trace, changed = used, True
            else:
                at += size
        size = size if changed else size // 2
    return trace


# ---- command line ----------------------------------------------------------------------------------------------------


@dataclass
class Total:
    """Figures of many schedules."""

    schedules: int = 0
    events: int = 0
    faults: int = 0
    longest_tail: int = 0
    coverage: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, str]] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.schedules += 1
        self.events += result.events
        self.faults += result.faults
        self.longest_tail = max(self.longest_tail, result.tail)
        self.coverage += result.coverage
        if result.violation is not None:
            self.violations.append((result.seed, result.violation))

    def merge(self, other: Total) -> None:
        self.schedules += other.schedules
        self.events += other.events
        self.faults += other.faults
        self.longest_tail = max(self.longest_tail, other.longest_tail)
        self.coverage += other.coverage
        self.violations += other.violations

    def line(self) -> str:
        points = sum(1 for k in self.coverage if k.startswith("at "))
        return (
            f"{self.schedules} schedules, {self.events} events, {self.faults} faults, {points} fault points, "
            f"longest tail {self.longest_tail} events, {len(self.violations)} violations"
        )


def _chunk(work: tuple[int, int, int]) -> Total:
    first, count, min_faults = work
    total = Total()
    for seed in range(first, first + count):
        total.add(run(seed, min_faults=min_faults))
    return total


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=20000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--min-faults", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args(arguments)
    size = 25
    chunks = (
        (args.first_seed + at, min(size, args.schedules - at), args.min_faults) for at in range(0, args.schedules, size)
    )
    total, began = Total(), time.monotonic()
    said = began
    with multiprocessing.Pool(args.processes) as pool, contextlib.suppress(KeyboardInterrupt):
        for part in pool.imap_unordered(_chunk, chunks):
            total.merge(part)
            now = time.monotonic()
            for seed, what in part.violations:
                print(f"VIOLATION seed {seed}: {what}", flush=True)
            if now - said > 5:
                print(f"{now - began:5.0f} s  {total.line()}", flush=True)
                said = now
            if now - began > args.seconds:
                break
        pool.terminate()
    print(f"{time.monotonic() - began:5.0f} s  {total.line()}")
    print("also:", ", ".join(f"{k} {v}" for k, v in sorted(total.coverage.items()) if not k.startswith("at ")))
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
