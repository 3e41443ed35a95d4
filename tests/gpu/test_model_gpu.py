"""The compiled step on CUDA: flex against dense, bfloat16 against float64, one compile, no host wait."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dfl_mp.config import LossConfig
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
    dtype: str, attention: str, loss: LossConfig = DFLASH, spec: DrafterSpec = SPEC, float8: bool = False
) -> TrainStep:
    return step_on(torch.device("cuda"), StepSettings(make_optim(), loss, dtype, attention, 2, 10, float8), spec)


def step_on(device: torch.device, settings: StepSettings, spec: DrafterSpec) -> TrainStep:
    g = torch.Generator().manual_seed(0)
    ends = FrozenEnds(*(torch.randn(V, H, generator=g) for _ in range(2)), final_logit_softcapping=20.0)
    drafter = make_drafter(spec)
    with torch.no_grad():
        for p in drafter.parameters():
            p.div_(5 if p.ndim > 1 else 1)
    return TrainStep(drafter.to(device), ends, settings)


def make_inputs(seed: int, device: str = "cuda") -> tuple[Tensor, PackTensors]:
    """S = 300 and M = 320: neither a multiple of the tile; some anchor slots are empty."""
    pack = make_pack(seed, rows=2, row_tokens=300, anchors=40).to(device)
    features = torch.randn(2, 300, 2 * H, generator=torch.Generator().manual_seed(seed))
    return features.to(device), pack


def gradient(step: TrainStep, seed: int) -> Tensor:
    step.discard()
    step.accumulate(*make_inputs(seed, step.device.type), 0)
    return step.vector.detach().clone().double().cpu()


PACKS = (1, 2)
"""Both by the same step: the second is what a captured or compiled step does with another pack."""


def exact_gradients(loss: LossConfig, spec: DrafterSpec) -> list[Tensor]:
    """In float64 on the CPU, where nothing is compiled or captured."""
    step = step_on(torch.device("cpu"), StepSettings(make_optim(), loss, "float64", "dense", 2, 10), spec)
    return [gradient(step, seed) for seed in PACKS]


def errors(step: TrainStep, loss: LossConfig = DFLASH, spec: DrafterSpec = SPEC) -> list[float]:
    """Relative, of the gradient of each pack."""
    found = []
    for seed, exact in zip(PACKS, exact_gradients(loss, spec), strict=True):
        got = gradient(step, seed)
        assert torch.isfinite(got).all()
        found.append(float((got - exact).norm() / exact.norm()))
    return found


@pytest.mark.parametrize("loss", [DFLASH, DPACE], ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("dtype", "attention", "bound"), [("float32", "flex", 5e-3), ("float32", "dense", 5e-3), ("bfloat16", "flex", 0.1)]
)
def test_every_pack_follows_float64(dtype: str, attention: str, bound: float, loss: LossConfig) -> None:
    found = errors(make_step(dtype, attention, loss), loss)
    print(dtype, attention, found)
    assert max(found) < bound


def test_float8_follows_float64_with_head_and_weight_gradients_as_they_were() -> None:
    found = errors(make_step("bfloat16", "flex", float8=True))
    assert min(found) > 0.01 and max(found) < 0.25


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
    step = make_step("bfloat16", "flash", DFLASH, spec)
    assert max(errors(step, DFLASH, spec)) < 0.1
    step.discard()
    features, pack = make_inputs(3)
    pack.anchor_BN.fill_(-1)
    step.accumulate(features, pack, 0)
    assert not step.flat.gradient.any()
