from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from dfl_mp.config import LossConfig
from dfl_mp.model import loss as loss_module
from dfl_mp.model.blocks import make_blocks
from dfl_mp.model.loss import dpace_weights, weighted_cross_entropy
from dfl_mp.model.reference import loss_sums
from dfl_mp.model.shapes import Blocks, FrozenEnds, PackTensors
from tests.unit.model_cases import DFLASH, DPACE, HIDDEN, VOCAB, make_ends, make_pack, packs

K, GAMMA = 4, 3.0
ENDS = [{}, {"logit_multiplier": 0.3}, {"logit_multiplier": 0.7, "final_logit_softcapping": 2.5}]


def make_hidden(pack: PackTensors, dtype: torch.dtype = torch.float64) -> Tensor:
    g = torch.Generator().manual_seed(1)
    hidden = torch.randn(*pack.anchor_BN.shape, K, HIDDEN, generator=g, dtype=dtype) * 0.4
    return (hidden * (pack.anchor_BN >= 0)[..., None, None]).requires_grad_()


@pytest.mark.parametrize("loss", [DFLASH, DPACE], ids=lambda c: c.name)
@pytest.mark.parametrize("changes", ENDS)
@given(pack=packs)
@settings(deadline=None, max_examples=10)
def test_loss_statistics_and_gradient_by_definition(
    loss: LossConfig, changes: dict[str, Any], pack: PackTensors
) -> None:
    ends, hidden = make_ends(**changes), make_hidden(pack)
    fast = weighted_cross_entropy(hidden[:, :, 1:], make_blocks(pack, K, VOCAB - 1, GAMMA), ends, loss)
    slow = loss_sums(hidden, pack, ends, loss, GAMMA)
    for name, a, b in zip(fast._fields, fast, slow, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=0, atol=1e-9, msg=name)
    torch.testing.assert_close(
        torch.autograd.grad(fast.loss * 1.7, hidden), torch.autograd.grad(slow.loss * 1.7, hidden), rtol=0, atol=1e-9
    )


def test_chunks_do_not_change_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    pack = make_pack(5, 2, 40, 7)
    ends, blocks = make_ends(), make_blocks(pack, K, VOCAB - 1, GAMMA)
    results = []
    for blocks_at_once in (1, 3, 100):
        monkeypatch.setitem(loss_module.CHUNK_LOGITS, "cpu", blocks_at_once * VOCAB * (K - 1))
        hidden = make_hidden(pack)
        sums = weighted_cross_entropy(hidden[:, :, 1:], blocks, ends, DPACE)
        results.append((sums, torch.autograd.grad(sums.loss, hidden)[0]))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=1e-12)


def test_only_labelled_slots_get_a_gradient() -> None:
    pack = make_pack(5, 1, 40, 7)
    blocks, ends = make_blocks(pack, K, VOCAB - 1, GAMMA), make_ends()
    hidden = make_hidden(pack)
    sums = weighted_cross_entropy(hidden[:, :, 1:], blocks, ends, DFLASH)
    (grad,) = torch.autograd.grad(sums.loss, hidden)
    assert grad[blocks.valid_BNK].any(-1).all()
    assert not grad[~blocks.valid_BNK].any()


def test_accepted_counts_the_prefix_and_the_bonus() -> None:
    ends = FrozenEnds(torch.eye(5), torch.eye(5))
    labels = torch.tensor([[[0, 1, 2, 3], [0, 4, 4, 4], [0, 2, 0, 0], [0, 0, 0, 0]]])
    guesses = torch.tensor([[[0, 1, 2, 0], [0, 1, 4, 4], [0, 2, 0, 0], [0, 0, 0, 0]]])
    valid = torch.tensor([[[0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]]], dtype=torch.bool)
    live = torch.tensor([[True, True, True, False]])
    blocks = Blocks(labels, labels, labels, valid.double(), valid, live, torch.tensor(2))
    sums = weighted_cross_entropy(torch.eye(5)[guesses][:, :, 1:] * 9, blocks, ends, DFLASH)
    assert (int(sums.anchors), int(sums.labels)) == (3, 7)
    assert int(sums.accepted) == (2 + 1) + (0 + 1) + (1 + 1)


def test_dpace_weights_worked_example() -> None:
    """CE = ln 2, 0: q~ = 0.75, 1 and C = 0.75, 0.75; the third slot is not valid."""
    ce = torch.tensor([[0.5, 1.0, 0.1]]).log().neg()
    weights = dpace_weights(ce, torch.tensor([[True, True, False]]), 0.5)
    torch.testing.assert_close(weights, torch.tensor([[1.5, 0.75, 0.0]]))


def test_float32_loss_is_close_to_float64() -> None:
    pack = make_pack(8, 2, 40, 7)
    blocks = make_blocks(pack, K, VOCAB - 1, GAMMA)
    exact = weighted_cross_entropy(make_hidden(pack)[:, :, 1:], blocks, make_ends(), DFLASH)
    hidden = make_hidden(pack).detach().float().requires_grad_()
    single = weighted_cross_entropy(hidden[:, :, 1:], blocks, make_ends(dtype=torch.float32), DFLASH)
    assert single.loss.dtype == torch.float32
    torch.testing.assert_close(single.loss.double(), exact.loss, rtol=1e-5, atol=0)
