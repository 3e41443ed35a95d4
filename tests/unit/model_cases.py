"""Tiny drafters, targets' ends and packs for the tests of the maths."""

from __future__ import annotations

import random
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from dfl_mp.config import LossConfig, OptimConfig
from dfl_mp.model.drafter import Drafter
from dfl_mp.model.shapes import FrozenEnds, PackTensors
from dfl_mp.specs import DrafterSpec

torch.set_num_threads(1)
VOCAB, HIDDEN, FEATURES = 19, 12, 2
DFLASH = LossConfig(name="dflash", gamma=None, alpha=0.5)
DPACE = LossConfig(name="dpace", gamma=None, alpha=0.5)
SLIDING = {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 5}


def make_spec(**changes: Any) -> DrafterSpec:
    fields: dict[str, Any] = {
        "hidden_size": HIDDEN, "num_features": FEATURES, "num_layers": 2, "block_size": 4, "mask_token_id": VOCAB - 1,
        "intermediate_size": 10, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        "max_position_embeddings": 64,
        "layer_types": ("full_attention", "full_attention"), "sliding_window": None, "is_causal": True,
    }  # fmt: skip
    return DrafterSpec(**(fields | changes))


def make_optim(**changes: Any) -> OptimConfig:
    fields: dict[str, Any] = {
        "lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0,
        "warmup_ratio": 0.2, "schedule": "cosine", "decay_ratio": 0.2,
    }  # fmt: skip
    return OptimConfig(**(fields | changes))


def make_drafter(spec: DrafterSpec, seed: int = 0, dtype: torch.dtype = torch.float64) -> Drafter:
    """Weights large enough that every path matters, norms away from 1."""
    drafter = Drafter(spec).to(dtype)
    drafter.init_weights(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in drafter.parameters():
            p.mul_(15 if p.ndim > 1 else 1).add_(torch.randn(p.shape, generator=generator) * 0.1)
    return drafter


def make_ends(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> FrozenEnds:
    g = torch.Generator().manual_seed(seed)
    embed, head = (torch.randn(VOCAB, HIDDEN, generator=g, dtype=torch.float64).to(dtype) for _ in range(2))
    return FrozenEnds(embed, head, **changes)


def make_features(pack: PackTensors, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*pack.tokens_BS.shape, FEATURES * HIDDEN, generator=g, dtype=torch.float64).to(dtype)


def make_pack(seed: int, rows: int = 2, row_tokens: int = 20, anchors: int = 5) -> PackTensors:
    """Rows of random documents and padding, with random trained stretches and eligible anchors; maybe none."""
    rng = random.Random(seed)
    columns: list[list[list[Any]]] = [[], [], [], [], []]
    for _ in range(rows):
        document, position = [], []
        for d in range(4):
            length = min(rng.randint(1, max(1, row_tokens // 2)), row_tokens - len(document))
            document += [d] * length
            position += range(length)
        pad = row_tokens - len(document)
        document, position = document + [-1] * pad, position + [0] * pad
        mask = [d >= 0 and rng.random() < 0.75 for d in document]
        able = [a for a in range(row_tokens - 1) if mask[a] and mask[a + 1] and document[a] == document[a + 1]]
        chosen = sorted(rng.sample(able, min(len(able), rng.randint(0, anchors))))
        tokens = [rng.randrange(VOCAB - 1) for _ in range(row_tokens)]
        values = (tokens, document, position, mask, chosen + [-1] * (anchors - len(chosen)))
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    return PackTensors(*(torch.tensor(c, dtype=torch.bool if i == 3 else torch.int64) for i, c in enumerate(columns)))


def one_row(lengths: list[int], anchors: list[int], row_tokens: int, seed: int = 0) -> PackTensors:
    """One row of documents of these lengths, all trained, with these anchors (row indices, −1 at the end)."""
    document = [d for d, length in enumerate(lengths) for _ in range(length)]
    position = [i for length in lengths for i in range(length)]
    pad = row_tokens - len(document)
    g = torch.Generator().manual_seed(seed)
    document_BS = torch.tensor([document + [-1] * pad])
    return PackTensors(
        torch.randint(0, VOCAB - 1, (1, row_tokens), generator=g),
        document_BS,
        torch.tensor([position + [0] * pad]),
        document_BS >= 0,
        torch.tensor([anchors]),
    )


packs = st.builds(
    make_pack, st.integers(0, 10**6), rows=st.integers(1, 2), row_tokens=st.integers(4, 24), anchors=st.integers(1, 6)
)
specs = st.builds(
    make_spec,
    block_size=st.integers(2, 5),
    layer_types=st.sampled_from([("full_attention",) * 2, ("sliding_attention", "full_attention")]),
    sliding_window=st.integers(5, 9),
    is_causal=st.booleans(),
)
