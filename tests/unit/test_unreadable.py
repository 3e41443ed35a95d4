"""Rings that cannot be mapped: a death is not a fault of CUDA IPC, and one target's fault is not all's."""

from __future__ import annotations

from dfl_mp.roles.unreadable import GRACE_S, Unreadable

FIRST, SECOND = "target-0.1", "target-0.2"


def told(unreadable: Unreadable, target: str, now: float, dying: tuple[str, ...] = ()) -> list[bool]:
    """Complaints told within the grace and at its end, each as `proved`."""
    unreadable.take(target, "drafter-0.1", "no map", now)
    early = unreadable.due(now + GRACE_S / 2, dying=())
    return [c.proved for c in early + unreadable.due(now + GRACE_S, dying)]


def test_targets_that_were_dying_prove_nothing_however_many() -> None:
    unreadable = Unreadable()
    for number in range(1, 9):
        target = f"target-0.{number}"
        assert told(unreadable, target, 10.0 * number, dying=(target,)) == []
    assert told(unreadable, "target-1.1", 100.0) == [False]


def test_a_second_living_target_proves_it() -> None:
    unreadable = Unreadable()
    assert told(unreadable, FIRST, 0.0) == [False]
    assert told(unreadable, SECOND, 10.0) == [True]


def test_one_target_that_many_complain_of_proves_nothing_and_is_told_once() -> None:
    unreadable = Unreadable()
    unreadable.take(FIRST, "drafter-0.1", "no map", 0.0)
    unreadable.take(FIRST, "drafter-1.1", "no map", 0.9)
    assert [c.drafter for c in unreadable.due(GRACE_S, dying=())] == ["drafter-0.1"]
    assert unreadable.due(GRACE_S + 9.0, dying=()) == []
    assert told(unreadable, FIRST, 20.0) == [False]
