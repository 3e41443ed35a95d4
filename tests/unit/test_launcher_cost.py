"""What a pack costs, and which split of the GPUs follows: pure, and held against what was counted and measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import shapes
from benchmarks.dummy_target import write
from dfl_mp.config import Config
from launcher import compose, cost
from launcher.cost import PackCost
from launcher.plan import split_gpus

COSTS = st.floats(0.001, 10.0)


def config(folder: Path, *overrides: str) -> Config:
    fields = ["experiment=qwen3_8b", f"target.path={folder}", "data.path=x", "data.row_tokens=4096"]
    return compose.load([*fields, "data.anchors_per_row=512", *overrides])


def test_a_drafters_work_is_what_the_benchmark_counts(tmp_path: Path) -> None:
    """Documents are half a row long in the estimate: two a row in the pack that is counted."""
    torch.set_num_threads(1)
    write("qwen3_8b", tmp_path)
    found = cost.of(config(tmp_path))
    pack = shapes.random_pack(1, 4096, 512, 151936, documents=2)
    counted = shapes.useful_flop(shapes.drafter_spec("qwen3_8b"), pack, 151936)
    assert found.drafter_s == pytest.approx(counted / cost.DRAFTER_REACHES / cost.PRODUCT_RATE, rel=0.02)
    assert found.drafter_s == pytest.approx(cost.DEFAULT.drafter_s, rel=0.15)
    assert found.target_s == pytest.approx(cost.DEFAULT.target_s, rel=0.15)


def test_layers_above_the_last_feature_cost_nothing(tmp_path: Path) -> None:
    write("qwen3_8b", tmp_path)
    all_of_it, five = cost.of(config(tmp_path)), cost.of(config(tmp_path, "target.layer_ids=[0,1,2,3,4]"))
    assert five.target_s == pytest.approx(all_of_it.target_s * 5 / 34)
    assert five.drafter_s == all_of_it.drafter_s


def test_experts_that_a_token_is_not_sent_to_cost_nothing(tmp_path: Path) -> None:
    c = config(tmp_path)
    dense = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 8, "vocab_size": 100}
    dense |= {"intermediate_size": 256}
    experts = dense | {"num_experts_per_tok": 2, "moe_intermediate_size": 128, "num_experts": 64}
    assert cost.estimate(experts, c).target_s == cost.estimate(dense, c).target_s


def test_a_target_that_is_not_here_costs_what_qwen3_8b_does() -> None:
    assert cost.of(config(Path("nobody/knows-it"))) == cost.DEFAULT


@pytest.mark.parametrize(
    ("target_s", "drafter_s", "split"),
    [(1.0, 1.0, (4, 4)), (1.0, 3.0, (2, 6)), (5.0, 3.0, (5, 3)), (100.0, 1.0, (7, 1)), (1.0, 100.0, (1, 7))],
)
def test_split_of_eight(target_s: float, drafter_s: float, split: tuple[int, int]) -> None:
    """24 packs on 7 drafters take 4 rounds as on 6, but where a target is cheap that costs nothing either."""
    found = split_gpus(8, 24, PackCost(target_s, drafter_s, 0.0, 0.0))
    rounds = {d: -(-24 // d) for d in range(1, 8)}
    assert rounds[found[1]] == rounds[split[1]] and sum(found) == 8


@given(target_s=COSTS, drafter_s=COSTS, num_gpus=st.integers(2, 16), packs=st.integers(1, 48))
def test_no_split_is_faster(target_s: float, drafter_s: float, num_gpus: int, packs: int) -> None:
    found = PackCost(target_s, drafter_s, 0.01, 0.02)
    targets, drafters = split_gpus(num_gpus, packs, found)
    assert targets + drafters == num_gpus and 1 <= drafters <= packs
    others = [found.step_s(num_gpus - d, d, packs) for d in range(1, min(num_gpus, packs + 1))]
    assert found.step_s(targets, drafters, packs) == min(others)
