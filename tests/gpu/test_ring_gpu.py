"""The ring over CUDA IPC between processes, each with one visible GPU; either side killed."""

from __future__ import annotations

import pytest
import torch

from dfl_mp.transport import ring as rings
from dfl_mp.transport.ring import RingOwner, RingView
from tests.gpu.by_process import Script

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
LAST = max(0, torch.cuda.device_count() - 1)

OWNER = """
import sys, torch
from dfl_mp.transport.ring import RingOwner
ring = RingOwner.on_cuda(torch.device("cuda", 0), 3, (1, 2048, 1024), "bfloat16")
for i in range(3): ring.slot(i).fill_(i + 1)
torch.cuda.synchronize()
print("HANDLE", repr(ring.handle.model_dump()))
for line in sys.stdin:
    i, value = line.split()
    ring.slot(int(i)).fill_(float(value)); torch.cuda.synchronize()
    print("FILLED", i)
"""

READER = """
import sys, torch
from dfl_mp.messages import RingHandle
from dfl_mp.transport.ring import RingView
view = RingView(RingHandle.model_validate(eval(sys.argv[1])), torch.device("cuda", 0))
buffer = torch.empty(view.handle.shape, dtype=torch.bfloat16, device="cuda")
print("RATE", view.rate(buffer))
for line in sys.stdin:
    if line.strip() == "close":
        view.close(); del buffer; torch.cuda.synchronize(); torch.cuda.ipc_collect(); torch.cuda.empty_cache()
        print("CLOSED", torch.cuda.memory_allocated()); continue
    buffer.copy_(view.slot(int(line))); torch.cuda.synchronize()
    print("READ", buffer.float().mean().item(), buffer.float().std().item())
"""


def test_features_go_from_gpu_to_gpu_and_either_side_may_be_killed() -> None:
    owner = Script(OWNER, 0)
    handle = owner.expect("HANDLE")
    reader = Script(READER, LAST, handle)
    assert float(reader.expect("RATE")) > 1e9
    for slot in (2, 0):
        reader.tell(str(slot))
        assert reader.expect("READ") == f"{slot + 1.0} 0.0"
    reader.kill()
    owner.tell("1 7")
    owner.expect("FILLED")
    again = Script(READER, LAST, handle)
    again.expect("RATE")
    again.tell("1")
    assert again.expect("READ") == "7.0 0.0"
    owner.kill()
    again.tell("1")
    assert again.expect("READ") == "7.0 0.0", "the mapping outlives its owner"
    again.tell("close")
    assert int(again.expect("CLOSED")) == 0
    successor = Script(OWNER, 0)
    late = Script(READER, LAST, successor.expect("HANDLE"))
    late.expect("RATE")
    late.tell("2")
    assert late.expect("READ") == "3.0 0.0"
    for script in (again, successor, late):
        script.kill()


def test_a_ring_in_shared_memory_serves_gpus_too() -> None:
    source = OWNER.replace('on_cuda(torch.device("cuda", 0), ', 'on_shm("test", ') + "ring.close()\n"
    owner = Script(source, 0)
    reader = Script(READER, LAST, owner.expect("HANDLE"))
    reader.expect("RATE")
    reader.tell("1")
    assert reader.expect("READ") == "2.0 0.0"
    assert owner.process.stdin is not None
    owner.process.stdin.close()
    assert owner.process.wait(30) == 0
    reader.kill()


def test_a_ring_in_shared_memory_is_pinned_until_it_is_closed() -> None:
    owner = RingOwner.on_shm("test", 2, (1, 64, 64), "bfloat16")
    view = RingView(owner.handle, torch.device("cuda", 0))
    storages = [owner._pinned, view._pinned]  # keeps the memory mapped
    assert all(s is not None and s.is_pinned() for s in storages)
    view.close()
    owner.close()
    assert not any(s is not None and s.is_pinned() for s in storages)


def test_memory_that_cannot_be_pinned_does_not_fail_the_next_launch(capfd: pytest.CaptureFixture[str]) -> None:
    rings._say_once.cache_clear()
    storage = torch.zeros(1 << 20, dtype=torch.uint8)
    pinned = rings._pin(storage)
    try:
        assert rings._pin(storage) is None and rings._pin(storage) is None, "it is pinned already"
        assert float(torch.full((4,), 2.0, device="cuda").sum()) == 8.0
        out, err = capfd.readouterr()
        assert (out + err).count("cannot be pinned") == 1
    finally:
        rings._unpin(pinned)
