"""The real protocol machines under seeded schedules of faults. More of them: `python -m tests.protocol_harness`."""

from __future__ import annotations

import random

import pytest

from tests.protocol_harness import drive, run
from tests.protocol_world import Settings, World


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_no_schedule_violates_a_property(first: int) -> None:
    for seed in range(first, first + 25):
        result = run(seed, min_faults=2)
        assert result.violation is None, f"seed {seed}: {result.violation}"
        assert result.faults >= 2


def test_a_schedule_is_a_function_of_its_seed() -> None:
    assert run(7, min_faults=3).trace == run(7, min_faults=3).trace


def test_every_message_survives_the_wire() -> None:
    for seed in range(8):
        assert run(seed, Settings(drafters=3, save_every=1, wire=True), min_faults=2).violation is None


@pytest.mark.parametrize("drafters", [1, 2])
def test_one_slot_and_a_death_at_every_event(drafters: int) -> None:
    """One slot; each process killed at each event of one schedule, its messages lost or not: the steps still commit."""
    settings = Settings(drafters=drafters, steps=2, save_every=1)
    events = drive(World(settings), lambda w: w.finished)
    cases = [(at, keep) for at in range(events) for keep in (0, 99)]
    for at, keep in random.Random(drafters).sample(cases, len(cases) // drafters):
        for victim in ("coordinator", "target-0.1", "drafter-0.1"):
            world, left = World(settings), iter(range(events))
            drive(world, lambda w, left=left, at=at: next(left) == at)
            if victim == "coordinator" and world.coordinator is not None:
                world.do(("kill_coordinator", (keep,)))
            elif victim in world.workers:
                world.do(("kill", victim, keep))
            drive(world, lambda w: w.finished, seed=at)
            world.check_finished()


@pytest.mark.parametrize("effects", range(6))
def test_coordinator_killed_between_two_effects_at_every_event(effects: int) -> None:
    settings = Settings(drafters=2, steps=2, save_every=1)
    events = drive(World(settings), lambda w: w.finished)
    for at in range(events):
        world, left = World(settings), iter(range(events))
        drive(world, lambda w, left=left, at=at: next(left) == at)
        if world.coordinator is not None:
            world.do(("arm_kill", effects))
        drive(world, lambda w: w.finished, seed=at)
        world.check_finished()
