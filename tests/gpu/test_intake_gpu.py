"""A drafter's copies beside its training: neither may touch the other's memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from dfl_mp.messages import SlotRef
from dfl_mp.protocol.drafter import Drafter, Held
from dfl_mp.roles.intake import Intake
from dfl_mp.transport import ring as rings
from dfl_mp.transport.ring import RingOwner

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SHAPE = (1, 2048, 4096)


class Silent:
    """In place of the control thread: nobody listens."""

    def __init__(self) -> None:
        self.changed = threading.Condition()

    def report(self, change: Callable[[], object]) -> None:
        change()


def filled(name: str) -> RingOwner:
    """Slot 0 is all ones, slot 1 all twos."""
    ring = RingOwner.on_shm(name, 2, SHAPE, "bfloat16")
    for slot in range(2):
        ring.slot(slot).fill_(slot + 1)
    return ring


def held(ring: RingOwner, target: str, slot: int) -> Held:
    return Held(slot, SlotRef(target=target, slot=slot, seq=slot), ring.handle, lease=1)


def intake_on(device: torch.device) -> Intake:
    return Intake(Silent(), Drafter(4), device)  # type: ignore[arg-type]


def mean(features: torch.Tensor) -> float:
    return float(features.float().mean())


def test_a_new_buffer_is_not_memory_that_queued_kernels_still_use() -> None:
    device = torch.device("cuda", 0)
    ring, intake = filled("a"), intake_on(device)
    first = intake._copy(held(ring, "target-0.1", 0))  # maps the ring, which may wait for the device
    training = torch.ones(SHAPE, dtype=torch.bfloat16, device=device)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    training.mul_(5)
    del training
    second = intake._copy(held(ring, "target-0.1", 1))
    torch.cuda.synchronize()
    assert (mean(first), mean(second)) == (1.0, 2.0)
    intake._views["target-0.1"].close()
    ring.close()


def test_the_first_pack_of_a_target_does_not_overwrite_a_buffer_that_is_still_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rings, "_pin", lambda storage: None)  # pinning may wait for the device, which hides the fault
    device = torch.device("cuda", 0)
    old, new, intake = filled("old"), filled("new"), intake_on(device)
    buffer = intake._copy(held(old, "target-0.1", 1))
    seen = torch.zeros(SHAPE, dtype=torch.bfloat16, device=device)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    seen.copy_(buffer)
    intake.give_back(buffer)
    again = intake._copy(held(new, "target-1.1", 0))
    torch.cuda.synchronize()
    assert again.data_ptr() == buffer.data_ptr()
    assert (mean(seen), mean(again)) == (2.0, 1.0)
    for view in intake._views.values():
        view.close()
    old.close()
    new.close()
