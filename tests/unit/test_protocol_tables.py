"""Pack table, slot table and membership of the coordinator."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dfl_mp.messages import RingHandle, SlotRef
from dfl_mp.protocol.membership import Membership
from dfl_mp.protocol.packs import PackTable
from dfl_mp.protocol.slots import SlotTable


def ring(num_slots: int) -> RingHandle:
    return RingHandle(kind="shm", path="r", num_slots=num_slots, shape=(1, 1, 1), dtype="float32", checksum=0)


# ---- packs -----------------------------------------------------------------------------------------------------------


def test_packs_are_made_in_order_and_only_up_to_the_end() -> None:
    table = PackTable(per_step=2, num_steps=2, aside={1})
    assert table.next_pending(-1).number == 0  # type: ignore[union-attr]
    assert table.next_pending(0).number == 2  # type: ignore[union-attr]
    assert table.next_pending(3) is None
    assert table.get(4) is None
    assert [p.state for p in table.of_step(0)] == ["pending", "aside"]


def test_a_committed_step_is_gone() -> None:
    table = PackTable(per_step=2, num_steps=2, aside=set())
    table.drop_step(0)
    assert table.get(0) is None and table.get(1) is None
    assert [p.number for p in table.of_step(1)] == [2, 3]


def test_a_rewind_forgets_states_and_names_the_full_slots() -> None:
    table = PackTable(per_step=2, num_steps=3, aside=set())
    ref = SlotRef(target="target-0.1", slot=0, seq=1)
    for pack, change in zip(table.of_step(0) + table.of_step(1), ("ready", "held", "trained", "leased"), strict=True):
        pack.to_leased("target-0.1", 0)
        if change != "leased":
            pack.to_ready(ref)
        if change in ("held", "trained"):
            pack.to_held("drafter-0.1", 1)
    assert table.restart_at(1) == [ref]
    assert table.get(1) is None
    assert all(p.state == "pending" for p in table.of_step(1))


@settings(deadline=None, max_examples=60)
@given(st.sets(st.integers(0, 11)), st.lists(st.integers(0, 11), max_size=12))
def test_next_pending_is_the_lowest_that_nobody_has(aside: set[int], taken: list[int]) -> None:
    table = PackTable(per_step=3, num_steps=4, aside=aside)
    for number in taken:
        pack = table.get(number)
        if pack is not None and pack.state == "pending":
            pack.to_leased("target-0.1", 0)
    left = sorted(set(range(12)) - aside - set(taken))
    found = table.next_pending(-1)
    assert (found.number if found else None) == (left[0] if left else None)


# ---- slots -----------------------------------------------------------------------------------------------------------


def test_a_free_slot_is_of_the_emptiest_target() -> None:
    slots = SlotTable()
    slots.add("target-0.1", ring(1))
    slots.add("target-1.1", ring(2))
    assert slots.first_free() == ("target-1.1", 0)
    slots.take("target-1.1", 0, 5)
    assert slots.first_free() == ("target-0.1", 0)
    slots.take("target-0.1", 0, 6)
    slots.take("target-1.1", 1, 7)
    assert slots.first_free() is None
    assert slots.pack_in("target-1.1", 1) == 7


def test_slots_of_a_dead_target_are_gone() -> None:
    slots = SlotTable()
    slots.add("target-0.1", ring(2))
    slots.remove("target-0.1")
    slots.free("target-0.1", 0)
    assert len(slots) == 0 and ("target-0.1", 0) not in slots and slots.first_free() is None


# ---- membership ------------------------------------------------------------------------------------------------------


def group(**applied: int) -> Membership:
    made = Membership(generation=4)
    made.applied = {f"drafter-{name[1:]}.1": steps for name, steps in applied.items()}
    return made


def wait(made: Membership, name: str) -> None:
    made.joiners.append(name)
    made.warm.add(name)


def test_joiners_receive_the_state_only_when_all_members_are_level() -> None:
    made = group(d0=3, d1=2)
    wait(made, "drafter-2.1")
    order = made.begin(step=3)
    assert (order.generation, order.receivers, order.source) == (5, (), "drafter-0.1")
    assert made.joiners == ["drafter-2.1"]
    made.applied["drafter-1.1"] = 3
    order = made.begin(step=3)
    assert (order.generation, order.receivers) == (6, ("drafter-2.1",))
    assert order.members == ("drafter-0.1", "drafter-1.1", "drafter-2.1")


def test_a_cold_joiner_waits() -> None:
    made = group(d0=1)
    made.joiners.append("drafter-1.1")
    assert made.begin(step=1).receivers == ()


def test_a_generation_stands_when_all_have_formed_and_counts_its_number() -> None:
    made = group(d0=3)
    wait(made, "drafter-1.1")
    made.begin(step=3)
    assert not made.formed("drafter-0.1", 4, 3)
    assert not made.formed("drafter-0.1", 5, 3)
    assert made.formed("drafter-1.1", 5, 3)
    assert set(made.admit(step=3)) == {"drafter-0.1", "drafter-1.1"}
    assert made.applied == {"drafter-0.1": 3, "drafter-1.1": 3}


def test_a_death_while_forming_makes_the_receivers_joiners_again() -> None:
    made = group(d0=3)
    wait(made, "drafter-1.1")
    wait(made, "drafter-2.1")
    made.begin(step=3)
    assert made.remove("drafter-2.1")
    assert made.forming is None and made.joiners == ["drafter-1.1"]
    assert not made.remove("drafter-9.1")
