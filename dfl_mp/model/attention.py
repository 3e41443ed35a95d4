"""Rotary positions, and the one place where attention is computed. Legend of shape suffixes: `shapes.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dfl_mp.errors import ConfigError
from dfl_mp.model.flash import FlashMask, flash_attention
from dfl_mp.specs import DrafterSpec, Frequencies

CosSin = tuple[Tensor, Tensor]


def inverse_frequencies(spec: DrafterSpec) -> tuple[Tensor, float]:
    """Frequencies [D/2] in float32 and the factor on cos and sin, as transformers computes them for this rope type.

    Those in the spec, if there are any: they spare the caller the time that transformers takes to load.

    The readers of a drafter rotate the whole head, so a target's `partial_rotary_factor` is left out. Types whose
    frequencies depend on the length (`dynamic`, `longrope`) get those of a length within the original maximum.
    Raises ConfigError for a rope type that transformers does not know.
    """
    if spec.frequencies is not None:
        return torch.tensor(spec.frequencies.inverse, dtype=torch.float32), spec.frequencies.scale
    rope: dict[str, Any] = {k: v for k, v in spec.rope_parameters.items() if k != "partial_rotary_factor"}
    kind = rope.get("rope_type", "default")
    if kind == "default":
        exponent_D = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
        return 1.0 / (rope["rope_theta"] ** exponent_D), 1.0
    from transformers import Qwen3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind not in ROPE_INIT_FUNCTIONS:
        raise ConfigError(f"target.rope_parameters: unknown rope_type {kind!r}")
    config = Qwen3Config(
        hidden_size=spec.hidden_size,
        num_attention_heads=spec.num_attention_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.max_position_embeddings,
        rope_parameters=rope,
    )
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))


def with_frequencies(spec: DrafterSpec) -> DrafterSpec:
    """The spec with its frequencies worked out, where they are transformers' to compute. Raises as above."""
    if spec.rope_parameters.get("rope_type", "default") == "default":
        return spec
    inverse, scale = inverse_frequencies(spec)
    return spec.model_copy(update={"frequencies": Frequencies(inverse=tuple(inverse.tolist()), scale=scale)})


class Rotary(nn.Module):
    """positions [B, T] → cos, sin [B, 1, T, D], in float32 or float64."""

    inv_freq: Tensor

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        with torch.device("cpu"):  # another device may round differently
            inv_freq, self.scale = inverse_frequencies(spec)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Rotary:
        exact = self.inv_freq
        super()._apply(fn, recurse)
        # `.to(bfloat16)` of the drafter must not round the frequencies.
        self.inv_freq = exact.to(self.inv_freq.device)
        return self

    def forward(self, positions_BT: Tensor, dtype: torch.dtype) -> CosSin:
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        angle = positions_BT[:, None, :, None].to(exact) * self.inv_freq.to(exact)
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos() * self.scale, angle.sin() * self.scale


def rotate(x_BATD: Tensor, cos_sin: CosSin) -> Tensor:
    """Rotate each pair (i, i + D/2) of a head by its position's angle; the result keeps x's dtype."""
    cos, sin = cos_sin
    first, second = x_BATD.chunk(2, dim=-1)
    return (x_BATD * cos + torch.cat((-second, first), dim=-1) * sin).to(x_BATD.dtype)


def attend(q_BAMD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, mask: Tensor | BlockMask | FlashMask | None) -> Tensor:
    """Grouped-query attention at scale D^-0.5 → [B, A, M, D]; a query that sees no key gives exact zeros.

    A bool tensor [B, 1, M, T] (true = seen) or None goes to scaled_dot_product_attention, a BlockMask to
    flex_attention, which is only fast inside a compiled caller on CUDA, a FlashMask to FlashAttention-4.
    """
    grouped = q_BAMD.shape[1] != k_BGTD.shape[1]
    scale = 1.0 / math.sqrt(q_BAMD.shape[-1])
    if isinstance(mask, FlashMask):
        return flash_attention(q_BAMD, k_BGTD, v_BGTD, mask, scale)
    if isinstance(mask, BlockMask):
        return flex_attention(q_BAMD, k_BGTD, v_BGTD, block_mask=mask, scale=scale, enable_gqa=grouped)
    return F.scaled_dot_product_attention(q_BAMD, k_BGTD, v_BGTD, attn_mask=mask, scale=scale, enable_gqa=grouped)
