"""The DFlash drafter: a few layers that fill a block of masked slots from the target's features.

Source: arXiv 2602.06036; tensor names are those that SGLang, vLLM, transformers and the `dflash` package read.
Legend of shape suffixes: `shapes.py`.

Decoding with a cache, one response (B = 1):

    cache = DrafterCache()
    cache.append(drafter, features_BTF, positions_BT)  # tokens committed since the last call, without the anchor
    hidden_BKH = drafter.decode_block(ends.embed(ids_BK), positions_BK, cache)
    drafted = ends.logits(hidden_BKH[:, 1:]).argmax(-1)  # K − 1 tokens

The cache holds context only: a block's own keys are never stored, so nothing is cropped afterwards.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dfl_mp.errors import ConfigError
from dfl_mp.model.attention import CosSin, Rotary, attend, rotate
from dfl_mp.model.linear import Linear
from dfl_mp.model.mask import decode_mask
from dfl_mp.model.shapes import Masks
from dfl_mp.specs import DrafterSpec


class RMSNorm(nn.Module):
    """Computed in the weight's dtype (float32 masters under bfloat16 compute), returned in the input's."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.eps)
        return y.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        queries, keys = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
        self.q_proj = Linear(spec.hidden_size, queries)
        self.k_proj = Linear(spec.hidden_size, keys)
        self.v_proj = Linear(spec.hidden_size, keys)
        self.o_proj = Linear(queries, spec.hidden_size)
        self.q_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps)
        self.k_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps)

    def _heads(self, x: Tensor) -> Tensor:
        """[B, T, heads·D] → [B, T, heads, D]."""
        return x.unflatten(-1, (-1, self.head_dim))

    def context_kv(self, x_BTH: Tensor, cos_sin: CosSin) -> tuple[Tensor, Tensor]:
        """Keys (normed, rotated) and values [B, G, T, D] of the context c, or of a block's normed input."""
        k = rotate(self.k_norm(self._heads(self.k_proj(x_BTH))).transpose(1, 2), cos_sin)
        return k, self._heads(self.v_proj(x_BTH)).transpose(1, 2)

    def forward(self, h_BMH: Tensor, cos_sin: CosSin, context: tuple[Tensor, Tensor], mask: object) -> Tensor:
        """[B, M, A·D], before `o_proj`. Queries and own keys from `h_BMH`; `context` is what `context_kv` gave for c.

        Keys are [context | block].
        """
        q = rotate(self.q_norm(self._heads(self.q_proj(h_BMH))).transpose(1, 2), cos_sin)
        k, v = (torch.cat(pair, dim=2) for pair in zip(context, self.context_kv(h_BMH, cos_sin), strict=True))
        return attend(q, k, v, mask).transpose(1, 2).flatten(2)


class MLP(nn.Module):
    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.gate_proj = Linear(spec.hidden_size, spec.intermediate_size)
        self.up_proj = Linear(spec.hidden_size, spec.intermediate_size)
        self.down_proj = Linear(spec.intermediate_size, spec.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.self_attn = Attention(spec)
        self.mlp = MLP(spec)
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)

    def forward(
        self, x_BMH: Tensor, cos_sin: CosSin, context: tuple[Tensor, Tensor], mask: object, drop_first_of: int = 0
    ) -> Tensor:
        """[B, M, H]; with `drop_first_of` = K without the first slot of each block, which only serves as a key."""
        attended = self.self_attn(self.input_layernorm(x_BMH), cos_sin, context, mask)
        if drop_first_of:
            x_BMH, attended = (_without_first(x, drop_first_of) for x in (x_BMH, attended))
        x = x_BMH + self.self_attn.o_proj(attended)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    """Raises ConfigError when the spec's layer types, window and heads do not fit together."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        _check(spec)
        self.spec = spec
        self.fc = Linear(spec.num_features * spec.hidden_size, spec.hidden_size)
        self.hidden_norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.num_layers))
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.rotary = Rotary(spec)

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Matrices normal(0, 0.02), norms 1: a function of the seed and the kind of device, whatever the dtype."""
        initial_weights_(dict(self.named_parameters()), seed)

    def context(self, features_BSF: Tensor) -> Tensor:
        """Features [B, S, F] → c [B, S, H], shared by all layers."""
        return self.hidden_norm(self.fc(features_BSF))

    def forward(
        self,
        features_BSF: Tensor,
        block_embeds_BMH: Tensor,
        context_positions_BS: Tensor,
        block_positions_BM: Tensor,
        masks: Masks,
    ) -> Tensor:
        """All blocks of all rows at once → hidden [B, N, K − 1, H] after the last norm, of the slots from 1 on.

        Slot 0 holds a known token: no label, no head. Blocks without an anchor are zero.
        """
        c = self.context(features_BSF)
        x = block_embeds_BMH * masks.live_BM[..., None]
        context_rotary = self.rotary(context_positions_BS, x.dtype)
        block_rotary = self.rotary(block_positions_BM, x.dtype)
        K = self.spec.block_size
        for i, (layer, kind) in enumerate(zip(self.layers, self.spec.layer_types, strict=True)):
            mask = masks.sliding if kind == "sliding_attention" else masks.full
            context = layer.self_attn.context_kv(c, context_rotary)
            x = layer(x, block_rotary, context, mask, drop_first_of=K if i == self.spec.num_layers - 1 else 0)
        return self.norm(x).unflatten(1, (-1, K - 1))

    def decode_block(self, block_embeds_BKH: Tensor, block_positions_BK: Tensor, cache: DrafterCache) -> Tensor:
        """One block per row on the cached context → hidden [B, K', H]; K' may be shorter than the block size.

        Context tokens at or behind the block's first position, or at position −1 (padding), are not seen.
        """
        x = block_embeds_BKH
        rotary = self.rotary(block_positions_BK, x.dtype)
        kinds = {kind: decode_mask(kind, self.spec, cache.positions_BT, block_positions_BK) for kind in self.kinds}
        for i, layer in enumerate(self.layers):
            x = layer(x, rotary, (cache.keys[i], cache.values[i]), kinds[self.spec.layer_types[i]])
        return self.norm(x)

    @property
    def kinds(self) -> set[str]:
        return set(self.spec.layer_types)


class DrafterCache:
    """Keys and values of the context, one [B, G, T, D] per layer, and their positions [B, T]."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.positions_BT: Tensor

    def append(self, drafter: Drafter, features_BTF: Tensor, positions_BT: Tensor) -> None:
        """Add tokens that were committed; position −1 marks a row's padding. T may be 0, also at first."""
        c = drafter.context(features_BTF)
        rotary = drafter.rotary(positions_BT, c.dtype)
        new = [layer.self_attn.context_kv(c, rotary) for layer in drafter.layers]
        if not self.keys:
            self.keys, self.values = [k for k, _ in new], [v for _, v in new]
            self.positions_BT = positions_BT
            return
        self.keys = [torch.cat((old, k), dim=2) for old, (k, _) in zip(self.keys, new, strict=True)]
        self.values = [torch.cat((old, v), dim=2) for old, (_, v) in zip(self.values, new, strict=True)]
        self.positions_BT = torch.cat((self.positions_BT, positions_BT), dim=1)


def new_drafter(spec: DrafterSpec, device: torch.device) -> Drafter:
    """On the device from the start: a CPU would take seconds for a billion random numbers, and to copy them."""
    with device:
        return Drafter(spec).to(device)


def initial_weights_(parameters: dict[str, Tensor], seed: int) -> None:
    """Overwrite a drafter's parameters, given in the order of the module's own, with those that the seed stands for."""
    device = next(iter(parameters.values())).device
    generator = torch.Generator(device).manual_seed(seed)
    for p in parameters.values():
        if p.ndim == 1:
            p.fill_(1.0)
        else:
            p.copy_(torch.randn(p.shape, generator=generator, device=device).mul_(0.02))


def _without_first(x_BMH: Tensor, block_size: int) -> Tensor:
    return x_BMH.unflatten(1, (-1, block_size))[:, :, 1:].flatten(1, 2)


def _check(spec: DrafterSpec) -> None:
    if len(spec.layer_types) != spec.num_layers:
        raise ConfigError(f"drafter.layer_types: {len(spec.layer_types)} given for {spec.num_layers} layers")
    if "sliding_attention" in spec.layer_types and (spec.sliding_window or 0) < spec.block_size:
        raise ConfigError(f"drafter.sliding_window: must be at least the block size {spec.block_size}")
    if spec.num_attention_heads % spec.num_key_value_heads:
        raise ConfigError("drafter.num_key_value_heads: must divide num_attention_heads")
    if spec.head_dim % 2:
        raise ConfigError("drafter.head_dim: must be even")
