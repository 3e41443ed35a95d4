"""Frozen linear layers in float8: one scale a row of the weight, one a token of the input, products in bfloat16.

Needs a GPU of compute capability 8.9. Quantizing the input takes some elementwise operations, which a compiled layer
does in one pass; without compiling, float8 is slower than bfloat16. Legend: T tokens · I input size · O output size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dfl_mp.errors import ConfigError

DTYPE = torch.float8_e4m3fn
LARGEST = torch.finfo(DTYPE).max
ALIGNMENT = 16
"""I and O must be multiples of it."""


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
        x_TI, scale_T1 = to_float8(x.flatten(0, -2))
        y_TO = torch._scaled_mm(
            x_TI, self.weight_OI.T, scale_T1, self.scale_1O, bias=self.bias, out_dtype=x.dtype, use_fast_accum=True
        )
        return y_TO.unflatten(0, x.shape[:-1])


def to_float8(x_TI: Tensor) -> tuple[Tensor, Tensor]:
    """Each row divided by its own scale and rounded → float8 [T, I], scales float32 [T, 1]."""
    scale_T1 = x_TI.abs().amax(dim=-1, keepdim=True).float().clamp_min(1e-12) / LARGEST
    return (x_TI.float() / scale_T1).clamp(-LARGEST, LARGEST).to(DTYPE), scale_T1


def require(device: torch.device, dtype: torch.dtype) -> None:
    """Raises ConfigError naming `target.float8` where it cannot be used."""
    if device.type != "cuda":
        raise ConfigError("target.float8: needs a GPU of compute capability 8.9 or newer; there is none")
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (8, 9):
        raise ConfigError(
            f"target.float8: needs compute capability 8.9; {torch.cuda.get_device_name(device)} has {major}.{minor}"
        )
    if dtype != torch.bfloat16:
        raise ConfigError("target.float8: needs target.dtype=bfloat16")


def quantize(layers: nn.ModuleList) -> int:
    """Replace every linear layer in decoder layers whose sizes allow it; how many."""
    found = 0
    for layer in layers:
        linears = [(name, m) for name, m in layer.named_modules() if type(m) is nn.Linear]
        for name, linear in linears:
            if linear.in_features % ALIGNMENT == 0 and linear.out_features % ALIGNMENT == 0:
                layer.set_submodule(name, Float8Linear(linear))
                found += 1
    return found
