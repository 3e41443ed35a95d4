from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfl_mp import messages as m
from dfl_mp.errors import RefusedMessage

RING = m.RingHandle(kind="shm", path="/dev/shm/x", num_slots=2, shape=(1, 8, 4), dtype="float32", checksum=7)
REF = m.SlotRef(target="target-0.1", slot=1, seq=9)
STATISTICS = m.Statistics(
    loss=2.5,
    lr=1e-3,
    grad_norm=0.5,
    tokens=100.0,
    trained_tokens=40.0,
    accept_len_est=1.5,
    data_wait_s=0.1,
    skipped=False,
)
HELLO = m.DrafterHello(
    warm=True,
    applied=3,
    last=(4, 5),
    statistics=STATISTICS,
    generation=2,
    reduced=(3, 2),
    trained=(6,),
    held=(m.HeldPack(pack=7, state="copied", ref=REF, lease=11),),
    epochs=("target-0.1",),
)
EXAMPLES = [
    HELLO,
    m.TargetHello(ring=RING, slots=(None, (3, 1)), busy=((4, 0),)),
    m.Train(pack=7, ref=REF, lease=11, ring=RING),
    m.Form(generation=2, members=("drafter-0.1",), source=None, receivers=("drafter-0.1",), load=0),
    m.Applied(step=3, packs=(6, 7), statistics=STATISTICS),
    m.Stop(),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda x: type(x).__name__)
def test_a_message_survives_the_wire(message: m.Message) -> None:
    assert m.decode(m.encode(message)) == message


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=300)
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedMessage):
        m.decode(data)


@given(st.sampled_from(EXAMPLES), st.data())
@settings(deadline=None, max_examples=300)
def test_a_damaged_message_is_refused_or_another_valid_one(message: m.Message, data: st.DataObject) -> None:
    raw = bytearray(m.encode(message))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        decoded = m.decode(bytes(raw))
    except RefusedMessage:
        return
    assert m.decode(m.encode(decoded)) == decoded or decoded != decoded


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"t": "Copied", "pack": 1}, "Copied.lease"),
        ({"t": "Copied", "pack": -1, "lease": 1}, "Copied.pack"),
        ({"t": "Copied", "pack": "1", "lease": 1}, "Copied.pack"),
        ({"t": "Copied", "pack": 1, "lease": 1, "colour": 1}, "Copied.colour"),
        ({"t": "Launch"}, "unknown kind"),
        ({"t": "Released", "pack": 1, "lease": 2**70 // 2**7}, "Released.lease"),
        ({"t": "EpochClosed", "target": "../../etc"}, "EpochClosed.target"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, object], names: str) -> None:
    with pytest.raises(RefusedMessage, match=names):
        m.decode(msgpack.packb(body))


def test_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(RefusedMessage, match="bytes"):
        m.decode(b"\x00" * (m.MAX_BYTES + 1))
