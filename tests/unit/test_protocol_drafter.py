"""The drafter's and the target's machine, call by call."""

from __future__ import annotations

import pytest

from dfl_mp import messages as m
from dfl_mp.protocol.drafter import AllReduce, Apply, Compute, Drafter, Join, WriteCheckpoint
from dfl_mp.protocol.target import Target
from tests.protocol_workers import statistics

RING = m.RingHandle(kind="shm", path="r", num_slots=2, shape=(1, 1, 1), dtype="float32", checksum=0)
ME = "drafter-0.1"


def train(pack: int, lease: int, target: str = "target-0.1") -> m.Train:
    return m.Train(pack=pack, ref=m.SlotRef(target=target, slot=0, seq=1), lease=lease, ring=RING)


def form(generation: int, load: int | None = None) -> m.Form:
    return m.Form(generation=generation, members=(ME,), source=ME, receivers=(), load=load)


def said(drafter: Drafter) -> list[m.Message]:
    out = list(drafter.outbox)
    drafter.outbox.clear()
    return out


@pytest.fixture
def drafter() -> Drafter:
    """A member of generation 1 at step 0."""
    made = Drafter(per_step=2)
    made.warmed()
    made.handle(form(1, load=0))
    join = made.next_work()
    assert isinstance(join, Join)
    made.joined(join.order, 0, replaced=True)
    made.handle(m.Admitted(generation=1))
    assert [type(x) for x in said(made)] == [m.Warm, m.Formed]
    return made


def take(drafter: Drafter, pack: int, lease: int) -> None:
    drafter.handle(train(pack, lease))
    held = drafter.next_copy()
    assert held is not None
    drafter.copy_done(held)


def compute(drafter: Drafter, pack: int) -> None:
    assert drafter.next_work() == Compute(pack)
    drafter.computed(pack)


def reduce(drafter: Drafter, step: int, generation: int) -> None:
    drafter.handle(m.Reduce(step=step, generation=generation))
    work = drafter.next_work()
    assert work == AllReduce(step, generation)
    drafter.all_reduced(work)


def test_one_step(drafter: Drafter) -> None:
    for pack in (0, 1):
        take(drafter, pack, pack + 1)
        compute(drafter, pack)
    reduce(drafter, 0, 1)
    drafter.handle(m.Commit(step=0, packs=(0, 1)))
    assert drafter.next_work() == Apply(0)
    drafter.has_applied(statistics(1))
    kinds = [type(x) for x in said(drafter)]
    assert kinds == [m.Copied, m.Trained, m.Copied, m.Trained, m.Reduced, m.Applied]
    hello = drafter.hello()
    assert (hello.applied, hello.last, hello.reduced, hello.trained) == (1, (0, 1), None, ())


def test_packs_of_the_next_step_are_copied_but_not_computed(drafter: Drafter) -> None:
    take(drafter, 2, 1)
    assert drafter.next_work() is None


def test_revoke_is_answered_only_under_its_lease(drafter: Drafter) -> None:
    take(drafter, 0, 7)
    said(drafter)
    drafter.handle(m.Revoke(pack=0, lease=6))
    drafter.handle(m.Revoke(pack=1, lease=7))
    assert said(drafter) == []
    drafter.handle(m.Revoke(pack=0, lease=7))
    assert said(drafter) == [m.Released(pack=0, lease=7)]


def test_a_begun_computation_is_not_given_back(drafter: Drafter) -> None:
    take(drafter, 0, 7)
    drafter.next_work()
    said(drafter)
    drafter.handle(m.Revoke(pack=0, lease=7))
    drafter.computed(0)
    assert said(drafter) == [m.Trained(pack=0, lease=7)]


def test_a_begun_copy_is_finished_and_then_released(drafter: Drafter) -> None:
    drafter.handle(train(0, 7))
    held = drafter.next_copy()
    assert held is not None
    drafter.handle(m.Revoke(pack=0, lease=7))
    drafter.handle(m.EpochClosed(target="target-0.1"))
    assert said(drafter) == []
    drafter.copy_done(held)
    assert [type(x) for x in said(drafter)] == [m.Copied, m.Released]
    assert drafter.mapped == set()
    drafter.views_closed()
    assert [type(x) for x in said(drafter)] == [m.EpochDropped], "said when the ring is unmapped, not before"


def test_a_dropped_ring_gives_up_what_was_not_copied(drafter: Drafter) -> None:
    drafter.handle(train(0, 7))
    drafter.handle(m.EpochClosed(target="target-0.1"))
    drafter.views_closed()
    assert said(drafter) == [m.EpochDropped(target="target-0.1", released=((0, 7),))]


def test_reduce_of_another_generation_or_step_is_ignored(drafter: Drafter) -> None:
    drafter.handle(m.Reduce(step=0, generation=2))
    drafter.handle(m.Reduce(step=1, generation=1))
    assert drafter.next_work() is None


def test_form_discards_a_reduced_buffer_and_a_pending_reduce(drafter: Drafter) -> None:
    reduce(drafter, 0, 1)
    drafter.handle(form(2))
    assert drafter.reduced is None
    assert drafter.next_work() == Join(form(2))
    drafter.joined(form(2), 0, replaced=False)
    drafter.handle(m.Reduce(step=0, generation=2))
    drafter.handle(form(3))
    assert drafter.next_work() == Join(form(3))


def test_form_keeps_the_buffer_of_a_pending_commit(drafter: Drafter) -> None:
    reduce(drafter, 0, 1)
    drafter.handle(m.Commit(step=0, packs=(0, 1)))
    drafter.handle(form(2))
    assert drafter.hello().reduced == (0, 1)
    assert drafter.next_work() == Apply(0)


def test_reduce_may_come_before_the_last_commit_is_applied(drafter: Drafter) -> None:
    reduce(drafter, 0, 1)
    drafter.handle(m.Commit(step=0, packs=(0, 1)))
    drafter.handle(m.Reduce(step=1, generation=1))
    assert drafter.next_work() == Apply(0)
    drafter.has_applied(statistics(1))
    assert drafter.next_work() == AllReduce(1, 1)


def test_commit_of_an_applied_step_is_answered(drafter: Drafter) -> None:
    reduce(drafter, 0, 1)
    drafter.handle(m.Commit(step=0, packs=(0, 1)))
    drafter.next_work()
    drafter.has_applied(statistics(1))
    said(drafter)
    drafter.handle(m.Commit(step=0, packs=(0, 1)))
    assert said(drafter) == [m.Applied(step=0, packs=(0, 1), statistics=statistics(1))]


def test_commit_without_a_buffer_is_our_mistake(drafter: Drafter) -> None:
    with pytest.raises(AssertionError):
        drafter.handle(m.Commit(step=0, packs=(0, 1)))


def test_a_superseded_collective_is_given_up_and_never_entered_again(drafter: Drafter) -> None:
    drafter.handle(form(2))
    drafter.next_work()
    assert not drafter.must_abort
    drafter.aborted()
    assert drafter.next_work() is None
    drafter.handle(form(3))
    drafter.next_work()
    drafter.handle(form(4))
    assert drafter.must_abort
    drafter.aborted()
    assert drafter.next_work() == Join(form(4))


def test_a_joiner_does_not_count_before_it_is_admitted() -> None:
    made = Drafter(per_step=2)
    order = m.Form(generation=3, members=(ME, "drafter-1.1"), source="drafter-1.1", receivers=(ME,), load=None)
    made.handle(order)
    made.next_work()
    made.joined(order, 5, replaced=True)
    assert made.hello().applied is None
    made.handle(m.Admitted(generation=2))
    assert made.hello().applied is None
    made.handle(m.Admitted(generation=3))
    assert made.hello().applied == 5


def test_a_void_state_does_not_count(drafter: Drafter) -> None:
    take(drafter, 0, 1)
    drafter.void()
    hello = drafter.hello()
    assert (hello.applied, hello.trained, hello.held) == (None, (), ())


def test_what_was_said_on_the_old_link_is_in_the_hello(drafter: Drafter) -> None:
    take(drafter, 0, 3)
    hello = drafter.hello()
    assert said(drafter) == []
    assert [(h.pack, h.state, h.lease) for h in hello.held] == [(0, "copied", 3)]
    assert hello.epochs == ("target-0.1",)


def test_save_is_of_the_ordered_step_only(drafter: Drafter) -> None:
    drafter.handle(m.Save(steps=1))
    assert drafter.next_work() is None
    drafter.handle(m.Save(steps=0))
    assert drafter.next_work() == WriteCheckpoint(0)
    drafter.saved(0, "private")
    assert said(drafter)[-1] == m.Saved(steps=0, folder="private")


def test_an_unreadable_ring_is_told_once_a_link_and_tried_again(drafter: Drafter) -> None:
    drafter.handle(train(0, 3))
    for _ in range(2):
        held = drafter.next_copy()
        assert held is not None
        drafter.copy_failed(held, "no map")
        assert said(drafter) == [m.RingUnreadable(target="target-0.1", reason="no map")]
        assert drafter.next_copy() is None
        drafter.hello()


# ---- target ----------------------------------------------------------------------------------------------------------


def test_target_fills_slots_in_order_and_says_what_it_has() -> None:
    target = Target(RING)
    target.handle(m.Compute(pack=4, slot=1))
    target.handle(m.Compute(pack=5, slot=0))
    assert target.next_compute() == m.Compute(pack=4, slot=1)
    assert target.hello().busy == ((4, 1), (5, 0))
    target.computed()
    assert target.outbox == [m.FeaturesReady(pack=4, slot=1, seq=1)]
    assert target.hello().slots == (None, (4, 1))
    target.next_compute()
    target.computed()
    assert target.hello().slots == ((5, 2), (4, 1))
    target.handle(m.Compute(pack=6, slot=1))
    target.next_compute()
    assert target.hello().slots == ((5, 2), None)
