"""Products in float8: one scale a row of each factor, results in bfloat16.

Rounding the factors takes some elementwise operations, which compiled code does in one pass; without compiling, float8
is slower than bfloat16. Legend: T tokens · I input size · O output size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_mp import needs

DTYPE = torch.float8_e4m3fn
LARGEST = torch.finfo(DTYPE).max
ALIGNMENT = 16
"""I and O must be multiples of it."""


def to_float8(x_TI: Tensor) -> tuple[Tensor, Tensor]:
    """Each row divided by its own scale and rounded → float8 [T, I], scales float32 [T, 1]."""
    scale_T1 = x_TI.abs().amax(dim=-1, keepdim=True).float().clamp_min(1e-12) / LARGEST
    return (x_TI.float() / scale_T1).clamp(-LARGEST, LARGEST).to(DTYPE), scale_T1


def float8_product(x_TI: Tensor, weight_OI: Tensor, scale_1O: Tensor, bias: Tensor | None = None) -> Tensor:
    """x·Wᵀ + b [T, O] in the dtype of x, for a weight that is float8 already, with the scales of its rows."""
    x8_TI, scale_T1 = to_float8(x_TI)
    return torch._scaled_mm(
        x8_TI, weight_OI.T, scale_T1, scale_1O, bias=bias, out_dtype=x_TI.dtype, use_fast_accum=True
    )


def fits(sizes: tuple[int, ...]) -> bool:
    """Whether a weight of these sizes can be a factor."""
    return all(size % ALIGNMENT == 0 for size in sizes)


def require(field: str, device: torch.device, dtype: torch.dtype) -> None:
    """Raises ConfigError naming the config field (`target.float8`) where it cannot be used."""
    needs.require_float8(field, needs.describe(device), str(dtype).removeprefix("torch."))
