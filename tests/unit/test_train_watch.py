"""What is watched in a drafter: its device's time, what Dynamo compiles, and that attention has not fallen back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from dfl_mp.metrics import Busy
from dfl_mp.startup import Startup, process_age_s
from dfl_mp.train.clock import DeviceClock, Spent
from dfl_mp.train.compiled import CompileLog, forbid_recompiles
from dfl_mp.train.proof import Evidence, dense_bytes, fallback_reason

GOOD = Evidence(graphs=4, kernels=900, forward=5, backward=5, peak_bytes=10**9, dense_bytes=13 * 10**9)


@pytest.fixture
def dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=False):
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("seen", "named"),
    [
        (GOOD, None),
        (replace(GOOD, backward=10), None),
        (Evidence(4, 0, 0, 0, 10**9, 10**9), None),
        (Evidence(4, 900, 0, 0, 14 * 10**9, 13 * 10**9), "0 + 0 of 900 kernels are block-sparse"),
        (replace(GOOD, forward=4), "5 layers"),
        (replace(GOOD, backward=0), "5 + 0 of 900"),
        (Evidence(0, 900, 5, 5, 10**9, 10**9), "TORCHDYNAMO_DISABLE"),
        (Evidence(0, 0, 0, 0, 10**9, 10**9), "nothing was compiled"),
    ],
)
def test_fallback_reason(seen: Evidence, named: str | None) -> None:
    reason = fallback_reason(seen, num_layers=5)
    assert (reason is None) if named is None else (reason is not None and named in reason)


def test_what_the_profiler_may_not_see_is_not_called_proved() -> None:
    assert "not proved" in str(Evidence(4, 0, 0, 0, 10**9, 10**9)) and "not proved" not in str(GOOD)


def test_dense_bytes() -> None:
    assert dense_bytes(2, 32, 8192, 12288) == torch.empty(2, 32, 8192, 12288, device="meta").nbytes


def test_clock_tells_work_from_waiting_and_reads_late() -> None:
    now = iter(range(0, 1000, 1))
    clock: DeviceClock[int] = DeviceClock(lambda: next(now), lambda a, b: float(b - a))

    def work(waited: bool, lasts: int, after: int = 0) -> None:
        for _ in range(after):
            next(now)
        with clock.working(waited):
            for _ in range(lasts - 1):
                next(now)

    work(True, 5)
    work(True, 5, after=2)
    work(False, 3, after=7)
    assert clock.read() == Spent(10.0, 3.0), "the gap before the first is unknown, that before an apply is no waiting"
    assert clock.read() == Spent(0.0, 0.0)
    work(True, 4, after=1)
    work(False, 3)
    assert clock.read() == Spent(7.0, 2.0), "the apply of before, its gap to the next pack, and that"
    clock.forget()
    work(True, 4, after=50)
    work(False, 1)
    assert clock.read() == Spent(4.0, 0.0)


def test_recompiles_are_counted_with_their_reason(dynamo: None) -> None:
    double = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    double(torch.ones(3))
    log = CompileLog()
    double(torch.zeros(3))
    assert log.new() is None
    double(torch.ones(4))
    new = log.new()
    assert new is not None and new.graphs == 1 and new.seconds > 0
    assert "size mismatch at index 0" in new.reason and "\n" not in new.reason
    assert log.new() is None
    assert log.stages()["dynamo"] > 0


def test_a_recompile_can_be_an_error(dynamo: None) -> None:
    double = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    double(torch.ones(3))
    forbid_recompiles()
    double(torch.ones(3))
    with pytest.raises(Exception, match="size mismatch at index 0"):
        double(torch.ones(4))


def test_startup_adds_up_to_the_age_of_the_process() -> None:
    startup = Startup()
    startup.mark("python")
    startup.mark("cuda")
    assert list(startup.seconds) == ["python", "cuda"]
    assert sum(startup.seconds.values()) <= process_age_s() + 0.02
    pid = os.fork()
    if pid == 0:
        os._exit(0 if process_age_s() < 2.0 else 1)
    assert os.waitpid(pid, 0)[1] == 0, "a new process is young, however long this one has run"
    before = process_age_s()
    time.sleep(0.05)
    assert process_age_s() > before


def test_busy_between_first_and_last_commit() -> None:
    busy = Busy()
    for now, worked in ((0.0, 0.0), (10.0, 9.0)):
        busy.heard("target-0.1", worked, now)
    assert busy.share("target") is None
    busy.committed(last=False)
    busy.heard("target-0.1", 13.0, 15.0)
    busy.heard("target-1.1", 0.0, 15.0)
    busy.heard("target-1.1", 5.0, 20.0)
    assert busy.share("target") == pytest.approx((4 + 5) / (5 + 5))
    busy.committed(last=True)
    busy.heard("target-0.1", 13.0, 500.0)
    assert busy.share("target") == pytest.approx(0.9) and busy.share("drafter") is None
