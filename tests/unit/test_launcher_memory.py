"""What fits into a GPU and into memory, told before a worker starts."""

from __future__ import annotations

import pytest

from dfl_mp.config import Config, with_dtypes
from dfl_mp.errors import ConfigError
from dfl_mp.specs import DrafterSpec, Prepared, TargetSpec
from launcher import compose, memory
from launcher.machine import Gpu, Machine
from launcher.plan import Plan, plan

H200_MIB = 143_000
SHAPE = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "max_position_embeddings": 40960,
}


def qwen3_8b(anchors: int = 512, rows: int = 1) -> Prepared:
    target = TargetSpec(
        **SHAPE,
        path="x",
        architecture="Qwen3ForCausalLM",
        num_layers=36,
        vocab_size=151936,
        layer_ids=(1, 9, 17, 25, 33),
        embedding_scale=1.0,
        logit_multiplier=1.0,
        final_logit_softcapping=None,
        eos_token_ids=(1,),
    )
    drafter = DrafterSpec(
        **SHAPE,
        num_features=5,
        num_layers=5,
        block_size=16,
        mask_token_id=7,
        layer_types=("full_attention",) * 5,
        sliding_window=None,
        is_causal=True,
    )
    sizes = {"num_packs": 24, "num_steps": 1, "row_tokens": 4096, "rows_per_pack": rows, "anchors_per_row": anchors}
    return Prepared(target=target, drafter=drafter, data_dir="x", num_prompts=0, report={}, **sizes)


def job(gpus: tuple[int, ...]) -> tuple[Plan, Config]:
    config = with_dtypes(compose.load(["experiment=qwen3_8b", "data.path=x"]), gpu=bool(gpus))
    machine = Machine(64, tuple(Gpu(str(i), mib, mib) for i, mib in enumerate(gpus)))
    return plan(config.cluster, machine, config.train.packs_per_step), config


def test_the_estimate_is_near_what_was_measured() -> None:
    _, config = job((H200_MIB,))
    assert memory.drafter_need(config, qwen3_8b()).total / 1e9 == pytest.approx(35.2, rel=0.1)


def test_what_fits_is_described_per_gpu() -> None:
    placed, config = job((H200_MIB, H200_MIB))
    lines = memory.check(placed, config, qwen3_8b())
    assert len(lines) == 2 and "target-0 about" in lines[0] and "drafter-0 about" in lines[1]


def test_a_gpu_that_is_too_small_is_named_with_what_would_help() -> None:
    placed, config = job((H200_MIB, 24_000))
    with pytest.raises(ConfigError, match=r"GPU 1 has 23\.4 GiB free for drafter-0 .*anchors_per_row"):
        memory.check(placed, config, qwen3_8b())


def test_two_workers_of_one_gpu_are_added_up() -> None:
    placed, config = job((40_000,))
    with pytest.raises(ConfigError, match=r"target-0 .*drafter-0"):
        memory.check(placed, config, qwen3_8b())


def test_too_little_memory_for_rings_is_reported_with_both_sizes() -> None:
    placed, config = job(())
    with pytest.raises(ConfigError, match=r"of which 0\.06 GiB"):
        memory.check(placed, config, qwen3_8b(), memory_free=64 << 20)
    assert memory.check(placed, config, qwen3_8b(), memory_free=1 << 40) == ()
