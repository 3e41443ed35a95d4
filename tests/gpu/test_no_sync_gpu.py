"""The host waits for the GPU once in an optimizer step: what a drafter does with a pack is only enqueued."""

from __future__ import annotations

import time
import warnings
from dataclasses import fields

import pytest
import torch

from dfl_mp.data.packs import Pack
from dfl_mp.roles.tensors import to_tensors
from dfl_mp.train.clock import cuda_clock
from dfl_mp.train.compiled import CompileLog
from dfl_mp.train.step import TrainStep

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PACKS = 3
WAITS = 1
"""For the sums."""


def make() -> tuple[TrainStep, torch.Tensor, list[Pack]]:
    from benchmarks.shapes import VOCAB, random_pack, random_step

    device = torch.device("cuda", 0)
    packs = [random_pack(2, 1024, 64, VOCAB["tiny"], documents=2, seed=i) for i in range(PACKS)]
    arrays = [Pack(*(getattr(pack, f.name).numpy() for f in fields(pack))) for pack in packs]
    return random_step("tiny", device), torch.randn(2, 1024, 5 * 256, device=device, dtype=torch.bfloat16), arrays


def test_packs_are_enqueued_and_a_step_waits_once() -> None:
    step, features, packs = make()
    step.warm_up(features, to_tensors(packs[0], step.device))
    step.apply(step.vector.clone(), 0)
    clock, log = cuda_clock(), CompileLog()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for pack in packs:
            step.waited(0.1)
            with clock.working(waited=True):
                step.accumulate(features, to_tensors(pack, step.device), 0)
        reduced = step.vector.clone()
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with clock.working(waited=False):
                step.apply(reduced, 1)
        torch.cuda.set_sync_debug_mode("error")
        spent = clock.read()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [str(w.message) for w in told if "synchroniz" in str(w.message)]
    assert 1 <= len(waits) <= WAITS, waits
    assert spent.busy_s > 0 and spent.wait_s >= 0
    assert log.new() is None, "nothing was compiled after the warm-up"


def test_the_clock_sees_a_gpu_that_waits() -> None:
    step, features, packs = make()
    pack = to_tensors(packs[0], step.device)
    step.warm_up(features, pack)
    clock = cuda_clock()
    for pause in (0.0, 0.2):
        torch.cuda.synchronize()
        time.sleep(pause)
        with clock.working(waited=True):
            step.accumulate(features, pack, 0)
    with clock.working(waited=False):
        step.apply(step.vector.clone(), 1)
    spent = clock.read()
    assert spent.wait_s > 0.15
    assert spent.busy_s > 0
