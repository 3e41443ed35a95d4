"""The alarm: a step whose attention is compiled is proved, one that fell back is found out."""

from __future__ import annotations

import pytest
import torch

from dfl_mp.train.proof import Evidence, dense_bytes, fallback_reason, look
from dfl_mp.train.step import TrainStep, compiled_graphs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

S, N = 2048, 512


def evidence(step: TrainStep) -> Evidence:
    from benchmarks.shapes import VOCAB, random_pack

    pack = random_pack(1, S, N, VOCAB["tiny"]).to(step.device)
    features = torch.randn(1, S, 5 * 256, device=step.device, dtype=torch.bfloat16)
    queries = N * step.spec.block_size
    dense = dense_bytes(1, step.spec.num_attention_heads, queries, S + queries)
    step.accumulate(features, pack, 0)
    return look(lambda: step.accumulate(features, pack, 0), step.attention, compiled_graphs(), dense)


def make(attention: str) -> TrainStep:
    from benchmarks.shapes import random_step

    return random_step("tiny", torch.device("cuda", 0), attention=attention)


@pytest.mark.parametrize("attention", ["auto", "flex"])
def test_compiled_attention_is_proved(attention: str) -> None:
    step = make(attention)
    seen = evidence(step)
    print(seen)
    assert fallback_reason(seen, step.spec.num_layers) is None
    assert min(seen.forward, seen.backward) >= step.spec.num_layers, "the profiler names the kernels of this torch"
    assert seen.peak_bytes < seen.dense_bytes / 2


def test_a_fallback_is_found_out() -> None:
    step = make("flex")
    step._forward = step.drafter.forward
    seen = evidence(step)
    print(seen)
    reason = fallback_reason(seen, step.spec.num_layers)
    assert reason is not None and "0 of" in reason
    assert seen.peak_bytes > seen.dense_bytes
