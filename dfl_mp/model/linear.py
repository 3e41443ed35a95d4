"""A linear layer whose weight gradient is added in full precision to where the step keeps it, by the product itself.

Autograd would make the gradient in the compute dtype, convert it and add it: five times the memory traffic.
Legend of shape suffixes: `shapes.py`; P positions, O outputs, I inputs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dfl_mp.model.float8 import fits, float8_product, to_float8


def _add_product(sum_OI: Tensor, dy_PO: Tensor, x_PI: Tensor) -> None:
    """sum += dyᵀ·x, accumulated in the dtype of `sum_OI`: float32 for bfloat16 operands."""
    if dy_PO.dtype == sum_OI.dtype:
        sum_OI.addmm_(dy_PO.T, x_PI)
    elif dy_PO.is_cuda:
        torch.addmm(sum_OI, dy_PO.T, x_PI, out_dtype=sum_OI.dtype, out=sum_OI)
    else:
        sum_OI.addmm_(dy_PO.T.to(sum_OI.dtype), x_PI.to(sum_OI.dtype))


add_product = torch.library.custom_op("dfl_mp::add_product", _add_product, mutates_args=("sum_OI",))
"""For compiled callers; a call of it costs 0.1 ms, so eager ones take the function."""


@add_product.register_fake
def _(sum_OI: Tensor, dy_PO: Tensor, x_PI: Tensor) -> None:
    return None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, sum_OI: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        ctx.sum_OI = sum_OI  # not saved: others add to it before this backward does
        return F.linear(x, weight_OI)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight_OI = ctx.saved_tensors
        _add(ctx.sum_OI, dy, x)
        return dy @ weight_OI if ctx.needs_input_grad[0] else None, None, None


class _Float8Product(torch.autograd.Function):
    """Output and gradient of the input from factors in float8, each scaled along the dimension summed over."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, sum_OI: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        ctx.sum_OI = sum_OI
        return _float8(x, weight_OI)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight_OI = ctx.saved_tensors
        _add(ctx.sum_OI, dy, x)
        return _float8(dy, weight_OI.T) if ctx.needs_input_grad[0] else None, None, None


def _add(sum_OI: Tensor, dy: Tensor, x: Tensor) -> None:
    add = add_product if torch.compiler.is_compiling() else _add_product
    add(sum_OI, dy.flatten(0, -2), x.flatten(0, -2))


def _float8(x: Tensor, weight_OI: Tensor) -> Tensor:
    """x·Wᵀ, both rounded to float8."""
    weight, scale_O1 = to_float8(weight_OI)
    y_TO = float8_product(x.flatten(0, -2), weight.contiguous(), scale_O1.T.contiguous())
    return y_TO.unflatten(0, x.shape[:-1])


class Linear(nn.Linear):
    """Without bias. Once `gradient_sum` [O, I] is set, backward adds to it, and `weight.grad` stays as it is."""

    gradient_sum: Tensor | None
    float8 = False
    """Only where a `gradient_sum` is set: for training."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.register_buffer("gradient_sum", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.gradient_sum is None:
            return F.linear(x, self.weight)
        product = _Float8Product if self.float8 else _Product
        return product.apply(x, self.weight, self.gradient_sum)


def use_float8(module: nn.Module) -> None:
    """Train every `Linear` below, of sizes that allow it, with products in float8."""
    for layer in module.modules():
        if isinstance(layer, Linear) and fits(tuple(layer.weight.shape)):
            layer.float8 = True
