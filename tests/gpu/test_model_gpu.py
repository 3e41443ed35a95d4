"""The compiled step on CUDA: flex against dense, bfloat16 against float64, one compile, no host wait."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dfl_mp.model.flash import flash_reason
from dfl_mp.model.shapes import FrozenEnds, PackTensors
from dfl_mp.specs import DrafterSpec
from dfl_mp.train.step import StepSettings, TrainStep
from tests.unit.model_cases import DFLASH, DPACE, make_drafter, make_optim, make_pack, make_spec

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

H, V = 128, 1000
SPEC = make_spec(
    hidden_size=H,
    head_dim=32,
    block_size=8,
    intermediate_size=256,
    mask_token_id=V - 1,
    layer_types=("sliding_attention", "full_attention"),
    sliding_window=70,
)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """All steps here compile the same code, which Dynamo does eight times in a process."""
    torch._dynamo.reset()


def make_step(
    dtype: str, attention: str, loss: object = DFLASH, spec: DrafterSpec = SPEC, float8: bool = False
) -> TrainStep:
    g = torch.Generator().manual_seed(0)
    ends = FrozenEnds(*(torch.randn(V, H, generator=g) for _ in range(2)), final_logit_softcapping=20.0)
    drafter = make_drafter(spec)
    with torch.no_grad():
        for p in drafter.parameters():
            p.div_(5 if p.ndim > 1 else 1)
    return TrainStep(drafter.to("cuda"), ends, StepSettings(make_optim(), loss, dtype, attention, 2, 10, float8))


def make_inputs(seed: int) -> tuple[Tensor, PackTensors]:
    """S = 300 and M = 320: neither a multiple of the tile; some anchor slots are empty."""
    pack = make_pack(seed, rows=2, row_tokens=300, anchors=40).to("cuda")
    features = torch.randn(2, 300, 2 * H, generator=torch.Generator().manual_seed(seed))
    return features.to("cuda"), pack


def gradient(step: TrainStep, seed: int) -> Tensor:
    step.discard()
    step.accumulate(*make_inputs(seed), 0)
    return step.vector.double()


@pytest.mark.parametrize("loss", [DFLASH, DPACE], ids=lambda c: c.name)
def test_compiled_flex_equals_dense_and_follows_float64(loss: object) -> None:
    exact = gradient(make_step("float64", "dense", loss), 1)
    for dtype, attention, bound in (
        ("float32", "flex", 2e-2),
        ("float32", "dense", 2e-2),
        ("bfloat16", "flex", 0.1),
        ("bfloat16", "dense", 0.1),
    ):
        got = gradient(make_step(dtype, attention, loss), 1)
        assert torch.isfinite(got).all()
        assert float((got - exact).norm() / exact.norm()) < bound, (dtype, attention)


def test_float8_follows_float64_with_head_and_weight_gradients_as_they_were() -> None:
    exact = gradient(make_step("float64", "dense"), 1)
    got = gradient(make_step("bfloat16", "flex", float8=True), 1)
    assert torch.isfinite(got).all()
    assert 0.01 < float((got - exact).norm() / exact.norm()) < 0.25


@pytest.mark.parametrize(("attention", "float8"), [("flex", False), ("dense", False), ("flex", True)])
def test_a_second_pack_neither_recompiles_nor_waits(attention: str, float8: bool) -> None:
    step = make_step("bfloat16", attention, float8=float8)
    gradient(step, 1)
    inputs = make_inputs(2)
    torch.cuda.synchronize()
    with torch._dynamo.config.patch(error_on_recompile=True):
        torch.cuda.set_sync_debug_mode("error")
        try:
            step.accumulate(*inputs, 1)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    result = step.apply(step.vector.clone(), 0)
    assert not result.skipped and result.pack_counts == (1, 1)


@pytest.mark.parametrize("attention", ["flex", "dense"])
def test_a_pack_without_anchors_adds_exact_zeros(attention: str) -> None:
    step = make_step("bfloat16", attention)
    features, pack = make_inputs(3)
    pack.anchor_BN.fill_(-1)
    step.accumulate(features, pack, 0)
    assert not step.flat.gradient.any()


@pytest.mark.parametrize("head_dim", [64, 128])
def test_flash_follows_float64_and_leaves_blocks_without_an_anchor_zero(head_dim: int) -> None:
    if reason := flash_reason(torch.device("cuda"), torch.bfloat16, head_dim):
        pytest.skip(reason)
    spec = SPEC.model_copy(update={"head_dim": head_dim})
    exact = gradient(make_step("float64", "dense", DFLASH, spec), 1)
    step = make_step("bfloat16", "flash", DFLASH, spec)
    assert float((gradient(step, 1) - exact).norm() / exact.norm()) < 0.1
    step.discard()
    features, pack = make_inputs(3)
    pack.anchor_BN.fill_(-1)
    step.accumulate(features, pack, 0)
    assert not step.flat.gradient.any()
