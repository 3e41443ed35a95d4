"""Sizes of known models, random packs of those sizes, and what a training step has to compute.

Legend: `dfl_mp/model/shapes.py`.
"""

from __future__ import annotations

from typing import Any

import torch

from dfl_mp.config import LossConfig, OptimConfig
from dfl_mp.model.drafter import new_drafter
from dfl_mp.model.shapes import FrozenEnds, PackTensors
from dfl_mp.specs import DrafterSpec
from dfl_mp.train.step import StepSettings, TrainStep

VOCAB = {"qwen3_8b": 151936, "27b": 248320, "tiny": 4096}
SIZES = {
    "qwen3_8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8},
    "27b": {"hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 32, "num_key_value_heads": 8},
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2},
}
LOSS = LossConfig(name="dflash", gamma=None, alpha=0.5)
OPTIM = OptimConfig(
    lr=6e-4,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    weight_decay=0.0,
    clip_norm=1.0,
    warmup_ratio=0.04,
    schedule="cosine",
    decay_ratio=0.2,
)


def drafter_spec(size: str, num_layers: int = 5, block_size: int = 16, num_features: int = 5) -> DrafterSpec:
    """The drafter of a model of that size, as the paper's recipe makes it."""
    return DrafterSpec(
        **SIZES[size],
        num_features=num_features,
        num_layers=num_layers,
        block_size=block_size,
        mask_token_id=VOCAB[size] - 1,
        head_dim=128 if size != "tiny" else 64,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        max_position_embeddings=40960,
        layer_types=("full_attention",) * num_layers,
        sliding_window=None,
        is_causal=True,
    )


def random_step(size: str, device: torch.device, num_layers: int = 5, **settings: Any) -> TrainStep:
    """A train step with random weights and random frozen ends, one pack a step; `settings` as in `StepSettings`."""
    spec, generator = drafter_spec(size, num_layers), torch.Generator(device).manual_seed(0)
    shape = (VOCAB[size], spec.hidden_size)
    ends = FrozenEnds(
        *(torch.randn(shape, device=device, generator=generator, dtype=torch.bfloat16).mul_(0.02) for _ in range(2))
    )
    chosen = {"dtype": "bfloat16", "attention": "auto", **settings}
    given = StepSettings(OPTIM, LOSS, packs_per_step=1, num_steps=1000, **chosen)
    step = TrainStep(new_drafter(spec, device), ends, given)
    step.reset(0)
    return step


def random_pack(rows: int, tokens: int, anchors: int, vocab: int, documents: int = 1, seed: int = 0) -> PackTensors:
    """Full rows of equally long documents, all trained, with anchors spread at random."""
    g = torch.Generator().manual_seed(seed)
    length = tokens // documents
    position = torch.arange(tokens) % length
    document = (torch.arange(tokens) // length).clamp_max(documents - 1)
    eligible = torch.nonzero(position < length - 1).flatten()
    eligible = eligible[eligible < tokens - 1]
    drawn = [eligible[torch.randperm(len(eligible), generator=g)[:anchors]].sort().values for _ in range(rows)]
    return PackTensors(
        tokens_BS=torch.randint(vocab, (rows, tokens), generator=g),
        document_BS=document.expand(rows, -1).contiguous(),
        position_BS=position.expand(rows, -1).contiguous(),
        loss_mask_BS=torch.ones(rows, tokens, dtype=torch.bool),
        anchor_BN=torch.stack(drawn),
    )


def useful_flop(spec: DrafterSpec, pack: PackTensors, vocab: int) -> float:
    """Floating-point operations that forward and backward of one pack need, recomputation not counted."""
    return sum(useful_parts(spec, pack, vocab).values())


def useful_parts(spec: DrafterSpec, pack: PackTensors, vocab: int) -> dict[str, float]:
    """The same by kind: "products" of the drafter's matrices, frozen "head", "attention".

    Matrix products cost 2·m·n·k, three times (forward, gradient of the input, of the weight); that of the features
    twice, for features have no gradient; the frozen head twice, for the K − 1 labelled slots. Attention costs 4·D per
    visible pair and head, 3.5 times (the backward needs five products to the forward's two). In the last layer slot 0
    is a key and no query.
    """
    rows, tokens = pack.tokens_BS.shape
    anchors = int((pack.anchor_BN >= 0).sum())
    K, L, h = spec.block_size, spec.num_layers, spec.hidden_size
    s, queries = rows * tokens, L * K - 1  # of an anchor, in all layers
    q, kv = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
    keys = 2 * L * (s + anchors * K) * h * 2 * kv
    per_query = 2 * h * 2 * q + 6 * h * spec.intermediate_size
    features = 2 * s * spec.num_features * h * h
    position = torch.gather(pack.position_BS, 1, pack.anchor_BN.clamp_min(0))
    seen = int(((position + K) * (pack.anchor_BN >= 0)).sum())
    return {
        "products": float(2 * features + 3 * (keys + anchors * queries * per_query)),
        "head": float(2 * 2 * anchors * (K - 1) * h * vocab),
        "attention": float(3.5 * 4 * q * seen * queries),
    }
