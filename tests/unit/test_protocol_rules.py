"""Each rule of the protocol is needed: with it off, a schedule violates a property; with it on, the same does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dfl_mp import messages as m
from tests.protocol_harness import drive, run
from tests.protocol_rules_off import RULES, patched, variant_without
from tests.protocol_workers import SimDrafter
from tests.protocol_world import Settings, Violation, World

BOUND = 1500
SEARCH = 150
"""Seeds that are tried from the given one on; the given one is known to find it."""

FOUND_BY_SEED: list[tuple[str, int, Settings | None]] = [
    ("finish", 102, None),  # rule 2: a begun copy is finished, then released
    ("balance", 3, None),  # 3: a tail pack is revoked once, from a drafter with two
    ("credits", 1, None),  # 4: two untrained packs a drafter
    ("room", 7, None),  # 4: the lowest step takes buffers from later ones
    ("give_back", 18, None),  # 5: an uncopied pack of a dead drafter is ready
    ("suspect", 8, None),  # 5: Died names the pack that was being computed
    ("aside", 8, None),  # 6: a pack set aside is on disk first
    ("generation", 0, None),  # 7: so is a generation number
    ("discard", 33, None),  # 8: Form discards the reduced buffer
    ("recommit", 8, None),  # 10: Commit of an applied step is answered
    ("reform", 8, None),  # 11: a restarted coordinator always forms a generation
    ("oldlink", 26, None),  # 13: nothing of the old link is acted on
    ("stale", 1, None),  # 14: a Hello counts once its incarnation is listed
    ("wait", 0, None),  # 15: what follows a Hello is kept
    ("epochs", 6, None),  # 16: EpochClosed is sent again
    ("slots", 56, None),  # 17: a full slot is not free
    ("all_hold", 13, None),  # 18: all live drafters with state hold it
    ("rehello", 40, None),  # 19: a second Hello restarts the coordinator
    ("save", 0, Settings(save_every=1)),  # 20: Save follows the ledger line
    ("rewind", 10, None),  # 23: a rewind frees the slots
    ("commit_then_reduce", 10, None),  # a Reduce may arrive before the last Commit is applied
    ("late_save", 5, None),  # a Save that met a Commit is ordered again
    ("enter_once", 3, None),  # a generation that was given up is not entered again
    ("unreadable", 10, Settings(drafters=1, save_every=0, unreadable=True)),  # a new coordinator is told of it too
]
NEEDS_FAULTS = {"finish": 3, "all_hold": 3, "unreadable": 3}


@pytest.mark.parametrize(("rule", "seed", "settings"), FOUND_BY_SEED, ids=[rule for rule, _, _ in FOUND_BY_SEED])
def test_rule_is_needed(rule: str, seed: int, settings: Settings | None) -> None:
    faults = NEEDS_FAULTS.get(rule, 0)
    for tried in range(seed, seed + SEARCH):
        if run(tried, settings, (rule,), min_faults=faults, bound=BOUND).violation is not None:
            assert run(tried, settings, min_faults=faults).violation is None
            return
    pytest.fail(f"{SEARCH} schedules without the rule and nothing happened")


def drafter(world: World, name: str) -> SimDrafter:
    worker = world.workers[name]
    assert isinstance(worker, SimDrafter)
    return worker


def joiner_that_was_not_admitted(world: World) -> None:
    """Rule 9: a joiner has a state but is not admitted; the source dies, then the coordinator in the rewind."""
    first, joiner = drafter(world, "drafter-0.1"), "drafter-1.1"
    drive(world, lambda w: len(first.hist or ()) == 2 and len(w.disk.ledger) == 2)
    world.do(("add_late",))
    drive(
        world,
        lambda w: joiner in w.workers and drafter(w, joiner).machine.applied == 2,
        skip=lambda e: e == ("act", "drafter-0.1", "work") and first.machine.form is None,
    )
    world.do(("kill", "drafter-0.1", 0))
    world.do(("notice", "drafter-0.1"))
    while world.coordinator is not None:
        if len(world.disk.ledger) == 2 and world.cut is None:
            world.do(("arm_kill", 2))
        world.do(("to_coordinator", m.LAUNCHER))
    assert world.disk.ledger == []
    drive(world, lambda w: w.finished)


def lone_drafter_full_of_later_packs(world: World) -> None:
    """Rule 4: a target dies with the only pack of the lowest step, and ring and drafter are full of later ones."""
    dying, other = "target-0.1", "target-1.1"

    def blocked(w: World) -> bool:
        held = drafter(w, "drafter-0.1").machine.held
        full = w.memory[other][0]
        return len(held) == 2 and full is not None and full[0] not in held and all(n > 1 for n in [*held, full[0]])

    drive(world, blocked, skip=lambda e: e[0] == "act" and e[1] == dying and e[2] == "forward_ends")
    world.do(("kill", dying, 0))
    drive(world, lambda w: w.finished, skip=lambda e: e[0] == "restart")


def ledger_cut_below_a_checkpoint(world: World) -> None:
    """Rule 22: who applied and saved step 1 dies with the coordinator: the ledger is cut to the other's step."""
    fast, slow = "drafter-0.1", "drafter-1.1"
    drive(
        world,
        lambda w: 1 in w.disk.checkpoints,
        skip=lambda e: e[0] == "act" and e[1] == slow and e[2] == "main_ends" and commit_waits(world, slow),
    )
    assert drafter(world, slow).hist == ()
    world.do(("kill", fast, 0))
    world.do(("kill_coordinator", (99,)))
    drive(
        world,
        lambda w: not w.disk.ledger,
        skip=lambda e: e[0] == "restart" or (e[0] == "act" and e[1] == slow and e[2] == "main_ends"),
    )
    drive(world, lambda w: w.finished)


def commit_waits(world: World, name: str) -> bool:
    return drafter(world, name).machine.commit is not None


def replaced_drafter_saves_after_a_rewind(world: World) -> None:
    """Rule 21: a drafter that the launcher believes dead writes its checkpoint after the others went back to step 0."""
    zombie = drafter(world, "drafter-0.1")
    drive(
        world,
        lambda w: type(zombie.machine.main).__name__ == "WriteCheckpoint",
    )
    world.do(("zombify", "drafter-0.1"))
    drive(
        world,
        lambda w: w.disk.generation > 1 and not w.disk.ledger,
        skip=lambda e: e[0] == "act" and e[1] == "drafter-0.1",
    )
    world.do(("act", "drafter-0.1", "main_ends"))
    drive(world, lambda w: w.finished)


BY_HAND: list[tuple[str, Settings, Callable[[World], None]]] = [
    ("confirm", Settings(steps=4, save_every=0, late=True), joiner_that_was_not_admitted),
    ("ring_room", Settings(targets=2, drafters=1, save_every=0), lone_drafter_full_of_later_packs),
    ("cut_checkpoints", Settings(save_every=1), ledger_cut_below_a_checkpoint),
    ("publish", Settings(drafters=1, save_every=1), replaced_drafter_saves_after_a_rewind),
]


@pytest.mark.parametrize(("rule", "settings", "schedule"), BY_HAND, ids=[rule for rule, _, _ in BY_HAND])
def test_rule_is_needed_by_hand(rule: str, settings: Settings, schedule: Callable[[World], None]) -> None:
    schedule(World(settings))
    with patched((rule,)), pytest.raises(Violation):
        schedule(World(settings, variant_without((rule,))))


def test_every_rule_has_its_test() -> None:
    by_machine = {"lease", "demote"}  # tests/unit/test_protocol_coordinator.py
    assert {rule for rule, *_ in [*FOUND_BY_SEED, *BY_HAND]} | by_machine == set(RULES)
