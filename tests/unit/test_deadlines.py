"""Who is stuck, and what is late: by the clock of the test."""

from __future__ import annotations

from typing import Any

import pytest

from dfl_mp.config import DeadlineConfig
from dfl_mp.messages import Status
from dfl_mp.roles.deadlines import Deadlines, Order

LIMITS = DeadlineConfig(
    prepare=3600.0, start=600.0, step=600.0, reduce=100.0, form=120.0, save=300.0, stop=10.0, evaluate=3600.0
)
A, B = "drafter-0.1", "drafter-1.1"


def status(state: Any, since_s: float = 0.0) -> Status:
    return Status(state=state, since_s=since_s, step=7, busy_s=0.0, wait_s=0.0, packs=0)


def form(generation: int) -> Order:
    return Order("form", generation, 7, (A, B))


def test_a_member_stuck_in_an_old_generation_is_killed_and_the_one_that_waits_for_it_is_not() -> None:
    """Both say `joining`; the other begins to join anew with each generation."""
    deadlines, generation, joined_at, killed = Deadlines(LIMITS), 1, 0.0, {}
    for second in range(3600):
        now = float(second)
        statuses = {A: status("joining", now), B: status("joining", now - joined_at)}
        killed = deadlines.stuck(statuses)
        if (late := deadlines.late(form(generation), now)) is not None:
            killed |= deadlines.absent(late, statuses)
            generation, joined_at = generation + 1, now
        if killed:
            break
    assert list(killed) == [A]
    assert now == 2 * LIMITS.form + 1


@pytest.mark.parametrize(
    ("state", "limit"),
    [
        ("starting", 600.0),
        ("compiling", 600.0),
        ("working", 600.0),
        ("saving", 300.0),
        ("joining", 240.0),
        ("reducing", 220.0),
    ],
)
def test_every_state_but_idle_has_a_limit(state: str, limit: float) -> None:
    deadlines = Deadlines(LIMITS)
    assert deadlines.stuck({A: status(state, limit), B: status("idle", 1e6)}) == {}
    assert list(deadlines.stuck({A: status(state, limit + 1.0)})) == [A]


def test_a_late_order_names_those_who_have_not_entered_it() -> None:
    reduce = Order("reduce", 3, 7, (A, B, "drafter-2.1"))
    statuses = {A: status("reducing", 90.0), B: status("working", 90.0)}
    assert Deadlines.absent(reduce, statuses) == dict.fromkeys(
        (B, "drafter-2.1"), "did not enter reduce 7 in generation 3"
    )
    assert list(Deadlines.absent(form(3), {A: status("joining"), B: status("reducing")})) == [B]


def test_an_order_is_late_once_and_each_new_one_has_its_own_time() -> None:
    deadlines = Deadlines(LIMITS)
    assert deadlines.late(form(3), 0.0) is None
    assert deadlines.late(form(4), 100.0) is None
    assert deadlines.late(form(4), 219.0) is None
    assert deadlines.late(form(4), 220.0) == form(4)
    assert deadlines.late(form(4), 221.0) is None, "it is ordered anew"
    assert deadlines.late(None, 222.0) is None
    reduce = Order("reduce", 4, 7, (A, B))
    assert deadlines.late(reduce, 400.0) is None
    assert deadlines.late(reduce, 500.0) == reduce
