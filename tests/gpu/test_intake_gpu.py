"""A drafter's copies beside its training: neither may touch the other's memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dfl_mp.messages import SlotRef
from dfl_mp.protocol.drafter import Drafter, Held
from dfl_mp.roles.intake import Intake
from dfl_mp.transport.ring import RingOwner

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SHAPE = (1, 2048, 4096)


class Silent:
    """In place of the control thread: nobody listens."""

    def report(self, change: Callable[[], object]) -> None:
        change()


def test_a_new_buffer_is_not_memory_that_queued_kernels_still_use() -> None:
    device = torch.device("cuda", 0)
    ring = RingOwner.on_shm("test", 2, SHAPE, "bfloat16")
    for slot in range(2):
        ring.slot(slot).fill_(slot + 1)
    intake = Intake(Silent(), Drafter(4), device)  # type: ignore[arg-type]
    packs = [Held(n, SlotRef(target="target-0.1", slot=n, seq=n), ring.handle, lease=1) for n in range(2)]
    first = intake._copy(packs[0])  # maps the ring, which waits for the device
    training = torch.ones(SHAPE, dtype=torch.bfloat16, device=device)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    training.mul_(5)
    del training
    second = intake._copy(packs[1])
    torch.cuda.synchronize()
    assert float(first.float().mean()) == 1.0 and float(second.float().mean()) == 2.0
    intake._views["target-0.1"].close()
    ring.close()
