"""Tiny random causal language models, one of each family that targets come from, made by transformers' own classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from dfl_mp.config import TargetConfig
from dfl_mp.model.decode import Limits, greedy_decode
from dfl_mp.model.drafter import Drafter, DrafterCache
from dfl_mp.model.target_full import FullTarget

VOCAB = 61
LAYERS = 6

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "initializer_range": 0.2,
}
GROUPED = {**SHAPE, "num_key_value_heads": 2, "head_dim": 8}

FAMILIES = ("qwen3", "llama", "qwen3_moe", "gemma2", "gemma3", "gpt_neox")
"""Every one keeps packed documents apart through transformers' packed-row masks."""


def tiny_config(family: str, **fields: Any) -> PreTrainedConfig:
    """Config of a tiny model of `family`; sliding windows are 5 tokens, so that short rows leave them."""
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
    gemma = {"sliding_window": 5, "query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0}
    linear = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    kinds = ["linear_attention", "full_attention"] * (LAYERS // 2)
    made = {
        "qwen3": ("Qwen3Config", GROUPED),
        "llama": ("LlamaConfig", {**GROUPED, "rope_theta": 500.0, "tie_word_embeddings": True}),
        "qwen3_moe": ("Qwen3MoeConfig", {**GROUPED, **moe}),
        "gemma2": ("Gemma2Config", {**GROUPED, **gemma, "attn_logit_softcapping": 5.0}),
        "gemma3": ("Gemma3TextConfig", {**GROUPED, **gemma, "sliding_window_pattern": 3}),
        "gpt_neox": ("GPTNeoXConfig", {**SHAPE, "rotary_pct": 0.5}),
        "opt": ("OPTConfig", {**SHAPE, "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.2}),
        "qwen3_5": ("Qwen3_5TextConfig", {**GROUPED, **linear, "layer_types": kinds}),
    }
    name, base = made[family]
    return getattr(transformers, name)(**{**base, **fields})


def tiny_model(family: str, seed: int = 0, **fields: Any) -> PreTrainedModel:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(family, **fields), attn_implementation="sdpa")
    return model.float().eval()


def save_tiny(family: str, folder: Path, seed: int = 0, **fields: Any) -> Path:
    """Write a tiny model as a transformers folder and return it."""
    tiny_model(family, seed, **fields).save_pretrained(folder)
    return folder


def target_config(folder: Path | str, **fields: Any) -> TargetConfig:
    values: dict[str, Any] = {
        "path": str(folder),
        "revision": None,
        "num_features": 2,
        "layer_ids": None,
        "dtype": "float32",
        "attention": "auto",
        "compile": "auto",
        "float8": False,
        "trust_remote_code": False,
        "load_format": "auto",
    }
    return TargetConfig(**{**values, **fields})


def fit_drafter(drafter: Drafter, target: FullTarget, prompt: list[int], steps: int = 80) -> None:
    """Overfit a drafter to the target's own answer to one prompt, so that several of its drafts in a row are right."""
    ends, K = target.ends(), drafter.spec.block_size
    text = torch.tensor([*prompt, *greedy_decode(target, prompt, Limits(30)).tokens])
    _, features_TF = target.forward(text, target.new_cache())
    anchor_B = torch.arange(len(prompt), len(text) - K + 1)
    position_BK = anchor_B[:, None] + torch.arange(K)
    ids_BK = torch.full_like(position_BK, drafter.spec.mask_token_id)
    ids_BK[:, 0] = text[anchor_B]
    position_BT = torch.arange(len(text)).expand(len(anchor_B), -1)
    optimizer = torch.optim.Adam(drafter.parameters(), lr=1e-2)
    for _ in range(steps):
        cache = DrafterCache()
        cache.append(drafter, features_TF.expand(len(anchor_B), -1, -1), position_BT)
        logits = ends.logits(drafter.decode_block(ends.embed(ids_BK), position_BK, cache))[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), text[position_BK[:, 1:]].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    drafter.requires_grad_(False)
