"""Weighted cross-entropy through the target's frozen head, without ever holding all logits.

The head has no gradient, so the gradient of the hidden states is all there is: it is computed in the forward, a chunk
of whole blocks at a time, (softmax − one-hot)·w, and nothing is computed twice. Whole blocks, because under D-PACE
(arXiv 2605.18810) a slot's weight depends on the cross-entropies of its block. Legend of shape suffixes: `shapes.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dfl_mp.config import LossConfig
from dfl_mp.model.shapes import Blocks, FrozenEnds, LossSums

CHUNK_LOGITS = {"cuda": 1920 * 152_000, "cpu": 128 * 4096}
"""Logits held at once: on CUDA 1.2 GB in float32, on a CPU what stays in its cache."""


class _Rule(NamedTuple):
    """What turns a slot's product with the head into its weighted loss."""

    multiplier: float
    cap: float | None
    alpha: float | None
    """Of D-PACE; None: the weights are given."""


class _Slots(NamedTuple):
    """One chunk: gradient of Σ w·CE for the head's product [r·J, V] in the compute dtype; per slot the rest, [r, J]."""

    grad: Tensor
    ce: Tensor
    weight: Tensor
    hit: Tensor


def weighted_cross_entropy(hidden_BNJH: Tensor, blocks: Blocks, ends: FrozenEnds, loss: LossConfig) -> LossSums:
    """Σ w·CE over all labelled slots, its denominator, and teacher-forced statistics.

    `hidden_BNJH` holds the slots 1 … K − 1 of each block. `loss.name` "dflash" takes the weights of `blocks` and Σ w as
    denominator, "dpace" makes its own and divides by documents. Logits are float32 (float64 for float64 hidden states).

    Example: a block with labels (5, 9) whose argmaxes are (5, 7) counts 1 anchor and 2 accepted: one slot, and the
    target's own next token.
    """
    alpha = loss.alpha if loss.name == "dpace" else None
    rule = _Rule(ends.logit_multiplier, ends.final_logit_softcapping, alpha)
    per_block = (blocks.labels_BNK, blocks.weight_BNK, blocks.valid_BNK)
    labels_RJ, weight_RJ, valid_RJ = (x.flatten(0, 1)[:, 1:] for x in per_block)
    total, weight_RJ, hit_RJ = _FrozenHead.apply(
        hidden_BNJH.flatten(0, 1), ends.head_VH, (labels_RJ, weight_RJ, valid_RJ), rule
    )
    prefix_R = (hit_RJ & valid_RJ).to(torch.int32).cumprod(1).sum(1)
    counted_R = valid_RJ[:, 0]
    anchors = counted_R.sum()
    return LossSums(
        loss=total,
        denominator=weight_RJ.sum() if alpha is None else blocks.num_documents,
        anchors=anchors,
        accepted=prefix_R.sum() + anchors,
        labels=valid_RJ.sum(),
    )


def dpace_weights(ce_RJ: Tensor, valid_RJ: Tensor, alpha: float) -> Tensor:
    """Σ_{m≥j} C_m·valid_m with C_j = Π_{i≤j} ((1 − α)·exp(−CE_i) + α), invalid slots counting 1."""
    smoothed_RJ = torch.where(valid_RJ, (1 - alpha) * torch.exp(-ce_RJ) + alpha, 1.0)
    confidence_RJ = smoothed_RJ.cumprod(1) * valid_RJ
    return confidence_RJ.flip(1).cumsum(1).flip(1)


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_RJH: Tensor, head_VH: Tensor, per_slot: tuple[Tensor, ...], rule: _Rule) -> Any:
        R, J, H = hidden_RJH.shape
        device = hidden_RJH.device.type
        limit = CHUNK_LOGITS.get(device, CHUNK_LOGITS["cpu"])
        step = max(1, min(R, limit // (head_VH.shape[0] * J)))
        slots = _compiled_slots() if device == "cuda" else _slots
        grad_RJH = torch.empty_like(hidden_RJH, memory_format=torch.contiguous_format)
        rows: list[_Slots] = []
        total = 0.0
        for r in range(0, R, step):
            x_PH = hidden_RJH[r : r + step].reshape(-1, H)
            out = slots(x_PH, head_VH, *(x[r : r + step] for x in per_slot), rule)
            torch.mm(out.grad, head_VH, out=grad_RJH[r : r + step].view(-1, H))
            total = total + (out.weight * out.ce).sum()
            rows.append(out._replace(grad=out.ce))
        ctx.save_for_backward(grad_RJH)
        weight_RJ, hit_RJ = torch.cat([x.weight for x in rows]), torch.cat([x.hit for x in rows])
        ctx.mark_non_differentiable(weight_RJ, hit_RJ)
        return total, weight_RJ, hit_RJ

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        (grad_RJH,) = ctx.saved_tensors
        return grad_RJH * grad.to(grad_RJH.dtype), None, None, None


@torch.library.custom_op("dfl_mp::float_product", mutates_args=())
def float_product(x_PH: Tensor, head_VH: Tensor) -> Tensor:
    """x·headᵀ in float32, or float64; a bfloat16 product on CUDA is not rounded on the way."""
    if x_PH.dtype in (torch.float32, torch.float64):
        return x_PH @ head_VH.T
    if x_PH.is_cuda:
        return torch.mm(x_PH, head_VH.T, out_dtype=torch.float32)
    return (x_PH @ head_VH.T).float()


@float_product.register_fake
def _(x_PH: Tensor, head_VH: Tensor) -> Tensor:
    wide = torch.float64 if x_PH.dtype == torch.float64 else torch.float32
    return x_PH.new_empty(x_PH.shape[0], head_VH.shape[0], dtype=wide)


def _slots(
    x_PH: Tensor, head_VH: Tensor, labels_rJ: Tensor, weight_rJ: Tensor, valid_rJ: Tensor, rule: _Rule
) -> _Slots:
    """In place on the product with the head, which becomes the gradient. A label that ties with the best is hit."""
    label_P1 = labels_rJ.reshape(-1, 1)
    z_PV = float_product(x_PH, head_VH)
    slope_PV = None
    if rule.cap is not None:
        tanh_PV = z_PV.mul_(rule.multiplier / rule.cap).tanh_()
        slope_PV = (1 - tanh_PV.square()) * rule.multiplier
        z_PV = tanh_PV.mul_(rule.cap)
    elif rule.multiplier != 1.0:
        z_PV.mul_(rule.multiplier)
    top_P1 = z_PV.amax(-1, keepdim=True)
    picked_P1 = z_PV.gather(1, label_P1)
    exp_PV = z_PV.sub_(top_P1).exp_()
    sum_P1 = exp_PV.sum(-1, keepdim=True)
    ce_rJ = (top_P1 + sum_P1.log() - picked_P1).view_as(weight_rJ)
    weight_rJ = weight_rJ.to(ce_rJ.dtype) if rule.alpha is None else dpace_weights(ce_rJ, valid_rJ, rule.alpha)
    weight_P1 = weight_rJ.reshape(-1, 1) * (rule.multiplier if slope_PV is None else 1.0)
    grad_PV = exp_PV.mul_(weight_P1 / sum_P1)
    if torch.compiler.is_compiling():  # one pass; eager would need three more
        grad_PV = grad_PV - torch.where(torch.arange(z_PV.shape[1], device=z_PV.device) == label_P1, weight_P1, 0.0)
    else:
        grad_PV.scatter_add_(1, label_P1, -weight_P1)
    if slope_PV is not None:
        grad_PV.mul_(slope_PV)
    return _Slots(grad_PV.to(x_PH.dtype), ce_rJ, weight_rJ, (picked_P1 >= top_P1).view_as(weight_rJ))


@cache
def _compiled_slots() -> Callable[..., _Slots]:
    return torch.compile(_slots, dynamic=False)
