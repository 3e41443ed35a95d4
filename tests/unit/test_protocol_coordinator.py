"""The coordinator's machine, message by message: recovery from Hellos, leases, admission, checkpoints."""

from __future__ import annotations

from dfl_mp import messages as m
from dfl_mp.protocol import effects as e
from dfl_mp.protocol.coordinator import Coordinator
from dfl_mp.protocol.scheduler import OnDisk, Shape
from tests.protocol_rules_off import patched
from tests.protocol_workers import statistics

A, B, C = "drafter-0.1", "drafter-1.1", "drafter-2.1"
T, U = "target-0.1", "target-1.1"
RING = m.RingHandle(kind="shm", path="r", num_slots=1, shape=(1, 1, 1), dtype="float32", checksum=0)


def held(pack: int, lease: int, state: str = "assigned", target: str = T) -> m.HeldPack:
    ref = m.SlotRef(target=target, slot=0, seq=pack + 1)
    return m.HeldPack(pack=pack, state=state, ref=ref, lease=lease)  # type: ignore[arg-type]


def drafter(
    applied: int | None,
    *,
    reduced: tuple[int, int] | None = None,
    trained: tuple[int, ...] = (),
    holding: tuple[m.HeldPack, ...] = (),
) -> m.DrafterHello:
    per_step = 2
    last = () if not applied else tuple(range((applied - 1) * per_step, applied * per_step))
    return m.DrafterHello(
        warm=True,
        applied=applied,
        last=last,
        statistics=statistics(1) if applied else None,
        generation=1,
        reduced=reduced,
        trained=trained,
        held=holding,
        epochs=tuple(sorted({h.ref.target for h in holding})),
    )


def target(*slots: tuple[int, int] | None, busy: tuple[tuple[int, int], ...] = ()) -> m.TargetHello:
    return m.TargetHello(ring=RING, slots=slots or (None,), busy=busy)


def recovered(disk: OnDisk, **hellos: m.DrafterHello | m.TargetHello) -> tuple[Coordinator, list[e.Effect]]:
    """A coordinator that was started on `disk` and has heard the Hellos of A, B, C (drafters) and T, U (targets)."""
    names = {"A": A, "B": B, "C": C, "T": T, "U": U}
    made = Coordinator(Shape(per_step=2, num_steps=4, save_every=0), disk)
    out = made.handle(m.LAUNCHER, m.Alive(workers=tuple(names[k] for k in hellos)))
    for key, hello in hellos.items():
        out += made.handle(names[key], hello)
    assert made.recovered
    return made, out


def sent(effects: list[e.Effect], kind: type[m.Message]) -> list[tuple[str, m.Message]]:
    return [(x.to, x.message) for x in effects if isinstance(x, e.Send) and isinstance(x.message, kind)]


def test_nothing_is_assigned_before_every_listed_worker_has_said_hello_or_is_reaped() -> None:
    made = Coordinator(Shape(2, 4), OnDisk())
    assert made.handle(T, target()) == []
    assert made.handle(m.LAUNCHER, m.Alive(workers=(T, A, B))) == []
    assert made.handle(A, drafter(None)) == []
    out = made.handle(m.LAUNCHER, m.Died(worker=B, suspect=None))
    assert sent(out, m.Compute) and sent(out, m.Form)


def test_first_start_persists_the_generation_before_form_and_loads_step_0() -> None:
    _, out = recovered(OnDisk(generation=6), T=target(), A=drafter(None), B=drafter(None))
    persisted = out.index(e.PersistGeneration(7))
    [(_, first), (_, second)] = sent(out, m.Form)
    assert isinstance(first, m.Form) and first == second
    assert (first.generation, first.load, first.members, first.receivers) == (7, 0, (A, B), (A, B))
    assert persisted < min(out.index(e.Send(d, first)) for d in (A, B))


def test_rewind_cuts_the_ledger_to_the_newest_checkpoint() -> None:
    made, out = recovered(OnDisk(ledger=3, checkpoints={1, 2}), T=target(), A=drafter(None))
    assert e.CutLedger(2) in out and made.step == made.ledger == 2


def test_commit_is_repeated_for_those_who_hold_the_buffer_of_the_highest_applied_step() -> None:
    made, out = recovered(OnDisk(ledger=1), T=target(), A=drafter(2), B=drafter(1, reduced=(1, 1)))
    assert sent(out, m.Commit) == [(B, m.Commit(step=1, packs=(2, 3)))]
    assert [x.step for x in out if isinstance(x, e.AppendLedger)] == [1]
    assert made.step == 2


def test_a_step_that_all_hold_is_committed_and_one_that_some_hold_is_not() -> None:
    both = {"A": drafter(1, reduced=(1, 1)), "B": drafter(1, reduced=(1, 1))}
    _, out = recovered(OnDisk(ledger=1), T=target(), **both)
    assert {to for to, _ in sent(out, m.Commit)} == {A, B}
    _, out = recovered(OnDisk(ledger=1), T=target(), A=drafter(1, reduced=(1, 1)), B=drafter(1, trained=(2,)))
    assert sent(out, m.Commit) == [] and len(sent(out, m.Form)) == 2
    _, out = recovered(OnDisk(ledger=1), T=target(), A=drafter(1, reduced=(1, 1)), B=drafter(1, reduced=(1, 2)))
    assert sent(out, m.Commit) == []


def test_a_drafter_that_is_behind_without_the_buffer_joins_anew() -> None:
    """Rule 12: its gradient and packs are void; without the rule it would be a member at another step."""

    def start() -> Coordinator:
        behind = drafter(1, trained=(2,), holding=(held(4, 9),))
        return recovered(OnDisk(ledger=2), T=target((4, 5)), A=drafter(2), B=behind)[0]

    made = start()
    forming = made.group.forming
    assert forming is not None and forming.order.receivers == (B,) and forming.order.source == A
    assert set(made.group.applied) == {A}
    assert made.packs.get(4).holder != B  # type: ignore[union-attr]
    with patched(("demote",)):
        assert set(start().group.applied) == {A, B}


def test_slots_are_taken_over() -> None:
    """Rule 17: ready if its pack is otherwise pending, busy while a drafter still has to copy it, else free."""
    three = m.RingHandle(kind="shm", path="r", num_slots=3, shape=(1, 1, 1), dtype="float32", checksum=0)
    ref = m.SlotRef(target=T, slot=1, seq=2)
    mine = m.HeldPack(pack=1, state="assigned", ref=ref, lease=5)
    hello = m.TargetHello(ring=three, slots=((0, 1), (1, 2), None), busy=((2, 2),))
    made, _ = recovered(OnDisk(), T=hello, A=drafter(0, holding=(mine,)))
    assert [made.slots.pack_in(T, s) for s in range(3)] == [0, 1, 2]
    states = [(p.state, p.holder) for p in made.packs.of_step(0)]
    assert states == [("held", A), ("held", A)]  # pack 0 was ready and went to A at once
    assert made.packs.get(2).state == "leased"  # type: ignore[union-attr]
    made, _ = recovered(OnDisk(ledger=1), T=target((0, 1)), A=drafter(1))
    assert made.slots.pack_in(T, 0) == 2  # pack 0 is committed: the slot was free and leased again


def test_messages_under_another_lease_are_ignored() -> None:
    """Rule 1: a late answer of an old lease must not take the pack from its holder."""
    made, out = recovered(OnDisk(), T=target((0, 1)), A=drafter(0))
    [(_, train)] = sent(out, m.Train)
    assert isinstance(train, m.Train) and train.pack == 0
    for old in (m.Released, m.Copied, m.Trained):
        made.handle(A, old(pack=0, lease=train.lease - 1))
        pack = made.packs.get(0)
        assert pack is not None and (pack.state, pack.copied, pack.lease) == ("held", False, train.lease)
    made.handle(A, m.Trained(pack=0, lease=train.lease))
    assert made.packs.get(0).state == "trained"  # type: ignore[union-attr]


def test_leases_go_on_above_those_in_hand() -> None:
    _, out = recovered(OnDisk(), T=target((0, 1)), A=drafter(0, holding=(held(1, 77, "copied"),)))
    [(_, train)] = sent(out, m.Train)
    assert isinstance(train, m.Train) and train.lease > 77


def test_a_reduce_of_the_old_generation_does_not_commit() -> None:
    made, _ = recovered(OnDisk(), T=target(), A=drafter(0, trained=(0, 1)))
    out = made.handle(A, m.Formed(generation=1, applied=0))
    assert [x[1] for x in sent(out, m.Reduce)] == [m.Reduce(step=0, generation=1)]
    assert sent(made.handle(A, m.Reduced(step=0, generation=0)), m.Commit) == []
    assert sent(made.handle(A, m.Reduced(step=0, generation=1)), m.Commit) == [(A, m.Commit(step=0, packs=(0, 1)))]


def test_a_dead_members_gradient_is_given_back_and_the_rest_form_anew() -> None:
    made, _ = recovered(OnDisk(), T=target(), A=drafter(0, trained=(0,)), B=drafter(0, trained=(1,)))
    made.handle(A, m.Formed(generation=1, applied=0))
    out = made.handle(B, m.Formed(generation=1, applied=0))
    assert len(sent(out, m.Reduce)) == 2
    out = made.handle(m.LAUNCHER, m.Died(worker=B, suspect=None))
    assert [x[0] for x in sent(out, m.Form)] == [A]
    assert [p.state for p in made.packs.of_step(0)] == ["trained", "pending"]
    assert made.reducing is None


def test_a_pack_that_crashed_two_workers_is_set_aside_on_disk_first() -> None:
    made, _ = recovered(OnDisk(), T=target(busy=((0, 0),)), A=drafter(0, trained=(1,)))
    made.handle(A, m.Formed(generation=1, applied=0))
    out = made.handle(m.LAUNCHER, m.Died(worker=T, suspect=0))
    assert not any(isinstance(x, e.PersistAside) for x in out)
    made.handle(m.LAUNCHER, m.Started(worker="target-0.2"))
    made.handle("target-0.2", target())
    out = made.handle(m.LAUNCHER, m.Died(worker="target-0.2", suspect=0))
    reduce = next(i for i, x in enumerate(out) if isinstance(x, e.Send) and isinstance(x.message, m.Reduce))
    assert out.index(e.PersistAside(0)) < reduce
    out = made.handle(A, m.Reduced(step=0, generation=1))
    assert sent(out, m.Commit) == [(A, m.Commit(step=0, packs=(1,)))]


def test_messages_of_a_dead_incarnation_have_no_effect() -> None:
    made, _ = recovered(OnDisk(), T=target(), A=drafter(0), B=drafter(0))
    made.handle(m.LAUNCHER, m.Died(worker=B, suspect=None))
    assert made.handle(B, m.Formed(generation=1, applied=0)) == []
    assert made.handle(B, drafter(0)) == []


def test_an_unlisted_hello_is_held_with_what_follows() -> None:
    made, _ = recovered(OnDisk(), T=target(), A=drafter(0))
    cold = drafter(None).model_copy(update={"warm": False})
    assert made.handle(B, cold) == [] and made.handle(B, m.Warm()) == []
    assert made.group.joiners == []
    made.handle(m.LAUNCHER, m.Started(worker=B))
    assert made.group.joiners == [B] and B in made.group.warm


def test_a_second_hello_restarts_the_coordinator() -> None:
    made, _ = recovered(OnDisk(), T=target(), A=drafter(0))
    assert any(isinstance(x, e.Restart) for x in made.handle(T, target()))


def test_a_checkpoint_is_published_for_a_member_and_only_up_to_the_ledger() -> None:
    made, _ = recovered(OnDisk(ledger=2), T=target(), A=drafter(2), B=drafter(None))
    publish = e.Publish(2, "f")
    assert publish not in made.handle(B, m.Saved(steps=2, folder="f"))
    assert e.Publish(3, "f") not in made.handle(A, m.Saved(steps=3, folder="f"))
    assert publish in made.handle(A, m.Saved(steps=2, folder="f"))


def test_a_save_that_met_a_commit_is_ordered_again() -> None:
    made, _ = recovered(OnDisk(), T=target(), A=drafter(0, reduced=(0, 1)))
    made.handle(A, m.Formed(generation=1, applied=0))
    made.handle(A, m.Applied(step=0, packs=(0, 1), statistics=statistics(1)))
    assert sent(made.save_now(), m.Save) == [(A, m.Save(steps=1))]
    assert made.save_now() == []
    out = made.handle(A, m.Applied(step=1, packs=(2, 3), statistics=statistics(1)))
    assert sent(out, m.Save) == [(A, m.Save(steps=2))]


def test_a_dead_target_is_told_to_every_drafter_also_to_one_that_is_joining() -> None:
    made, _ = recovered(OnDisk(), T=target(), U=target(), A=drafter(0), B=drafter(None))
    assert made.group.forming is not None and made.group.forming.order.receivers == (B,)
    out = made.handle(m.LAUNCHER, m.Died(worker=T, suspect=None))
    assert sent(out, m.EpochClosed) == [(A, m.EpochClosed(target=T)), (B, m.EpochClosed(target=T))]


def test_a_late_order_is_superseded_by_the_next_generation() -> None:
    made, _ = recovered(OnDisk(), T=target(), A=drafter(0), B=drafter(None))
    [(_, form), _] = sent(made.form_again(), m.Form)
    assert isinstance(form, m.Form) and form.generation == 2 and form.receivers == (B,)


def test_finished_needs_the_last_checkpoint() -> None:
    made, out = recovered(OnDisk(ledger=4), A=drafter(4))
    assert sent(out, m.Save) == [(A, m.Save(steps=4))]
    made.handle(A, m.Formed(generation=1, applied=4))
    assert not made.finished
    made.handle(A, m.Saved(steps=4, folder="f"))
    assert made.finished
