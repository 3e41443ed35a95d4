from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dfl_mp import messages as m
from dfl_mp.errors import RefusedMessage, TransportError
from dfl_mp.transport.links import Hub, Link, private_dir, socket_path
from dfl_mp.transport.ring import RingOwner, RingView

CPU = torch.device("cpu")


@pytest.fixture
def ring() -> Iterator[RingOwner]:
    owner = RingOwner.on_shm("test", 3, (1, 16, 8), "float32")
    yield owner
    owner.close()


def receive(hub: Hub, within: float = 5.0) -> tuple[str, m.Message]:
    got = hub.receive(within)
    assert got is not None, "nothing came"
    return got


def test_words_arrive_in_order_with_their_sender(tmp_path: Path) -> None:
    hub, link = Hub(tmp_path), Link(tmp_path, "drafter-1.2")
    try:
        for n in range(50):
            assert link.send(m.Copied(pack=n, lease=n), within=5.0)
        assert [receive(hub) for _ in range(50)] == [("drafter-1.2", m.Copied(pack=n, lease=n)) for n in range(50)]
        assert hub.send("drafter-1.2", m.Stop())
        assert link.receive(5.0) == m.Stop()
    finally:
        link.close()
        hub.close()


def test_sending_to_nobody_is_said(tmp_path: Path) -> None:
    hub = Hub(tmp_path)
    try:
        assert not hub.send("drafter-9.1", m.Stop())
    finally:
        hub.close()


def test_a_second_coordinator_is_refused(tmp_path: Path) -> None:
    hub = Hub(tmp_path)
    try:
        with pytest.raises(TransportError, match="another coordinator"):
            Hub(tmp_path)
    finally:
        hub.close()


def test_a_worker_sees_the_coordinator_go_and_speaks_to_the_next(tmp_path: Path) -> None:
    first, link = Hub(tmp_path), Link(tmp_path, "target-0.1")
    try:
        assert link.send(m.Warm(), within=5.0)
        receive(first)
        first.close()
        deadline = time.monotonic() + 10
        while not link.broken and time.monotonic() < deadline:
            link.receive(0.2)
        assert link.broken
        second = Hub(tmp_path)
        link.reopen()
        assert not link.broken
        assert link.send(m.Copied(pack=1, lease=1), within=10.0)
        assert receive(second, 10.0) == ("target-0.1", m.Copied(pack=1, lease=1))
        second.close()
    finally:
        link.close()


def test_strangers_and_noise_are_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    hub = Hub(tmp_path)
    stranger, worker = Link(tmp_path, "mallory"), Link(tmp_path, "drafter-0.1")
    try:
        assert stranger.send(m.Stop(), within=5.0)
        with pytest.raises(RefusedMessage, match="mallory"):
            hub.receive(5.0)
        worker._socket.send(b"\xc1 noise")
        with pytest.raises(RefusedMessage, match=r"drafter-0\.1"):
            hub.receive(5.0)
        assert worker.send(m.Warm())
        assert receive(hub) == ("drafter-0.1", m.Warm())
    finally:
        stranger.close()
        worker.close()
        hub.close()


def test_wake_ends_a_wait(tmp_path: Path) -> None:
    link = Link(tmp_path, "drafter-0.1")
    try:
        threading.Timer(0.1, link.wake).start()
        assert link.receive(20.0) is None
    finally:
        link.close()


def test_the_socket_lies_in_a_private_folder_and_long_paths_work(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    hub = Hub(deep)
    try:
        folder = socket_path(deep).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len(os.fsencode(socket_path(deep))) <= 100
    finally:
        hub.close()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)  # whatever the umask
    with pytest.raises(TransportError, match="not private"):
        private_dir(tmp_path / "open")


def test_a_view_reads_what_the_owner_wrote(ring: RingOwner) -> None:
    view = RingView(ring.handle, CPU)
    ring.slot(2).copy_(torch.arange(128, dtype=torch.float32).view(1, 16, 8))
    assert torch.equal(view.slot(2), ring.slot(2))
    assert view.rate(torch.empty(1, 16, 8)) > 0


def test_a_mapping_outlives_its_owner_and_nobody_else_can_map_it(ring: RingOwner) -> None:
    view = RingView(ring.handle, CPU)
    ring.slot(0).fill_(3.0)
    ring.close()
    assert view.slot(0).sum().item() == 3.0 * 128
    with pytest.raises(TransportError, match="is gone"):
        RingView(ring.handle, CPU)


@pytest.mark.parametrize("index", [-1, 3, 2**40])
def test_a_slot_out_of_bounds_is_refused(ring: RingOwner, index: int) -> None:
    with pytest.raises(RefusedMessage, match="slot"):
        RingView(ring.handle, CPU).slot(index)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"num_slots": 4}, RefusedMessage),
        ({"dtype": "float64"}, RefusedMessage),
        ({"path": "/etc/passwd"}, RefusedMessage),
        ({"path": "/proc/1/fd/../../etc/passwd"}, RefusedMessage),
        ({"path": f"/proc/{os.getpid()}/fd/0"}, RefusedMessage),
        ({"checksum": 1}, TransportError),
    ],
)
def test_a_handle_that_does_not_fit_is_refused_before_a_slot_is_read(
    ring: RingOwner, change: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        RingView(ring.handle.model_copy(update=change), CPU)


def test_a_ring_that_does_not_fit_is_refused_with_both_sizes() -> None:
    with pytest.raises(TransportError, match=r"MiB of memory are free; a ring of \d+ MiB"):
        RingOwner.on_shm("huge", 1000, (1000, 100_000, 1000), "float64")
