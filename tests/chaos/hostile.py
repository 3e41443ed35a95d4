"""A peer of the same user that speaks to a run's socket what it should not."""

from __future__ import annotations

import random
import time
from pathlib import Path

import msgpack
import zmq

from dfl_mp import messages as m
from dfl_mp.messages import MAX_BYTES, Message, encode
from dfl_mp.transport.links import socket_path

STATUS = m.Status(state="working", since_s=1e9, step=0, busy_s=0.0, wait_s=0.0, packs=0)
RING = m.RingHandle(kind="shm", path="/proc/1/fd/0", num_slots=4096, shape=(1, 64, 128), dtype="float64", checksum=1)
WRONG: tuple[tuple[str, Message], ...] = (
    ("drafter-77.1", m.Heartbeat(status=STATUS)),
    ("drafter-77.1", m.RingUnreadable(target="target-0.1", reason="hostile")),
    ("drafter-77.1", m.Trained(pack=0, lease=1)),
    ("drafter-77.1", m.Stop()),
    ("target-77.1", m.FeaturesReady(pack=0, slot=0, seq=1)),
    ("target-77.1", m.Reduced(step=0, generation=1)),
    ("target-77.1", m.DrafterHello.model_construct()),
    ("drafter-77.1", m.Died(worker="drafter-0.1", suspect=0)),
    ("drafter-77.1", m.Finished(error="hostile")),
    ("ctl-77", m.Shutdown(reason="hostile")),
    ("ctl-77", m.Command(what="kill", worker="drafter-0", operator="ctl-78")),
)
"""Well-formed words that are not the sender's to say."""
STRANGE = ("mallory", "drafter-0", "target-0.1\n", "\udcff", "drafter-99999.1", "launcher ")


def noise(rng: random.Random) -> list[tuple[str, list[bytes]]]:
    """(sender, frames) of messages that are torn, oversized, unknown, stale, or nobody's to say."""
    whole = encode(m.TargetHello(ring=RING, slots=(None,), busy=()))
    bodies = [
        [b""],
        [b"\xc1 noise"],
        [rng.randbytes(rng.randrange(1, 200))],
        [whole[: rng.randrange(1, len(whole))]],
        [whole, b"one frame too many"],
        [msgpack.packb({"t": "Launch"})],
        [msgpack.packb({"t": "Copied", "pack": 1, "lease": 1, "colour": 1})],
        [msgpack.packb({"t": "Copied", "pack": -1, "lease": 1})],
        [msgpack.packb({"t": "Saved", "steps": 1, "folder": "x" * 5000})],
        [msgpack.packb([[]] * 50)],
        [b"\x91" * 5000],
        [b"\xdd\xff\xff\xff\xff"],
        [bytes(MAX_BYTES + 1)],
    ]
    said = [("drafter-77.1", body) for body in bodies]
    said += [(sender, [whole]) for sender in STRANGE]
    said.append(("target-78.1", [whole]))
    for sender, message in WRONG:
        body = b"\x81\xa1t\xacDrafterHello" if isinstance(message, m.DrafterHello) else encode(message)
        said.append((sender, [body]))
    rng.shuffle(said)
    return said


def attack(run_dir: Path, rng: random.Random, times: int = 1, within: float = 5.0) -> int:
    """Say all of it `times` times; how many messages were sent."""
    context = zmq.Context()
    sockets: dict[str, zmq.Socket[bytes]] = {}
    sent = 0
    end = time.monotonic() + within
    try:
        for sender, frames in noise(rng) * times:
            if sender not in sockets:
                sockets[sender] = _connect(context, run_dir, sender)
            left = max(0, int(1000 * (end - time.monotonic())))
            if sockets[sender].poll(left, zmq.POLLOUT):
                sockets[sender].send_multipart(frames)
                sent += 1
        time.sleep(0.2)  # LINGER is 0: let them leave
    finally:
        context.destroy(linger=0)
    return sent


def _connect(context: zmq.Context[zmq.Socket[bytes]], run_dir: Path, sender: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 100_000)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.IDENTITY, sender.encode("utf-8", errors="surrogateescape"))
    socket.connect(f"ipc://{socket_path(run_dir)}")
    return socket
