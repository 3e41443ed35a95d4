"""What the coordinator refuses: whose words count, and how much noise a run's events can hold."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfl_mp import messages as m
from dfl_mp.errors import RefusedMessage
from dfl_mp.protocol import effects as e
from dfl_mp.protocol.coordinator import MAX_EARLY
from dfl_mp.protocol.scheduler import OnDisk
from dfl_mp.roles.refusals import LONGEST_PAUSE_S, REASON_CHARS, Refusals
from tests.unit.test_messages import EXAMPLES
from tests.unit.test_protocol_coordinator import A, B, T, drafter, recovered, target

STATUS = m.Status(state="idle", since_s=0.0, step=0, busy_s=0.0, wait_s=0.0, packs=0)
BEAT = m.Heartbeat(status=STATUS)
STRANGER = "drafter-77.1"


def test_a_storm_of_noise_leaves_a_few_lines_that_count_all() -> None:
    refusals = Refusals()
    lines = [refusals.take(f"reason {n % 7} " + "x" * 1000, n / 1000) for n in range(100_000)]
    said = [line for line in (*lines, refusals.flush()) if line]
    assert len(said) <= 9 and sum(line["count"] for line in said) == said[-1]["total"] == 100_000
    assert said[0]["reason"].startswith("reason 0") and len(said[0]["reason"]) == REASON_CHARS
    assert len(said[1]["also"]) == 4


def test_after_a_quiet_time_a_refusal_is_said_at_once() -> None:
    refusals = Refusals()
    for n in range(5000):
        refusals.take("noise", n / 10)
    refusals.flush()
    assert refusals.take("late", 500.0 + 3 * LONGEST_PAUSE_S) == {"reason": "late", "count": 1, "total": 5001}


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        (STRANGER, BEAT),
        (STRANGER, m.RingUnreadable(target=T, reason="no")),
        (A, m.Stop()),
        (A, m.Died(worker=B, suspect=None)),
        (A, m.Finished(error="")),
        (A, m.FeaturesReady(pack=0, slot=0, seq=1)),
        (A, target()),
        (T, drafter(0)),
        (T, m.Reduced(step=0, generation=1)),
        (T, target().model_copy(update={"busy": ((0, 9),)})),
        (T, target().model_copy(update={"slots": ()})),
        (m.LAUNCHER, m.Commit(step=0, packs=())),
        (m.LAUNCHER, drafter(0)),
    ],
)
def test_who_may_not_say_what(sender: str, message: m.Message) -> None:
    machine, _ = recovered(OnDisk(), T=target(), A=drafter(None), B=drafter(None))
    assert machine.may_speak(A, BEAT) and machine.may_speak(T, BEAT)
    assert not machine.may_speak(sender, message)


def test_one_that_was_not_listed_yet_is_kept_but_not_without_bound() -> None:
    machine, _ = recovered(OnDisk(), T=target(), A=drafter(None), B=drafter(None))
    assert machine.may_speak(STRANGER, drafter(None))
    machine.handle(STRANGER, drafter(None))
    said = 0
    while machine.may_speak(STRANGER, m.Warm()):
        machine.handle(STRANGER, m.Warm())
        said += 1
    assert said == MAX_EARLY


def test_a_new_coordinator_learns_again_which_pack_crashes_workers() -> None:
    """One crash was seen by the coordinator before it; the launcher tells of it again."""
    for again in (False, True):
        machine, _ = recovered(OnDisk(), T=target(), A=drafter(None), B=drafter(None))
        if again:
            machine.handle(m.LAUNCHER, m.Died(worker="drafter-0.0", suspect=3))
            machine.handle(m.LAUNCHER, m.Died(worker="drafter-0.0", suspect=3))  # of one death, however often told
        machine.packs.get(3)
        out = machine.handle(m.LAUNCHER, m.Died(worker=B, suspect=3))
        assert (e.PersistAside(3) in out) == again


JUNK = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False)),
        *(st.text(max_size=12), st.binary(max_size=12)),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(sorted(m.Message.kinds)), st.data())
@settings(deadline=None, max_examples=400)
def test_known_kinds_with_junk_in_their_fields_are_refused_or_whole(kind: str, data: st.DataObject) -> None:
    fields = sorted(m.Message.kinds[kind].model_fields)
    body = {name: data.draw(JUNK, label=name) for name in fields if data.draw(st.booleans(), label=f"has {name}")}
    try:
        decoded = m.decode(msgpack.packb({"t": kind, **body}))
    except RefusedMessage:
        return
    assert type(decoded).__name__ == kind and m.decode(m.encode(decoded)) == decoded


@given(st.sampled_from(EXAMPLES), st.data())
@settings(deadline=None, max_examples=200)
def test_a_torn_message_is_refused(message: m.Message, data: st.DataObject) -> None:
    whole = m.encode(message)
    with pytest.raises(RefusedMessage):
        m.decode(whole[: data.draw(st.integers(0, len(whole) - 1))])
