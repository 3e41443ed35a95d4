"""Frozen linear layers in float8. Legend: T tokens · I input size · O output size."""

from __future__ import annotations

from torch import Tensor, nn

from dfl_mp.model.float8 import fits, float8_product, to_float8


class Float8Linear(nn.Module):
    """y = x @ Wᵀ + b with W and x rounded to float8; made from a frozen bfloat16 layer."""

    weight_OI: Tensor
    scale_1O: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = to_float8(linear.weight.detach())
        self.register_buffer("weight_OI", weight)
        self.register_buffer("scale_1O", scale.T.contiguous())
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        y_TO = float8_product(x.flatten(0, -2), self.weight_OI, self.scale_1O, self.bias)
        return y_TO.unflatten(0, x.shape[:-1])


def quantize(layers: nn.ModuleList) -> int:
    """Replace every linear layer in decoder layers whose sizes allow it; how many."""
    found = 0
    for layer in layers:
        linears = [(name, m) for name, m in layer.named_modules() if type(m) is nn.Linear]
        for name, linear in linears:
            if fits((linear.in_features, linear.out_features)):
                layer.set_submodule(name, Float8Linear(linear))
                found += 1
    return found
