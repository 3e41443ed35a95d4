"""Tiny random causal language models, one of each family that targets come from, made by transformers' own classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from dfl_mp.config import TargetConfig

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


def tiny_config(family: str) -> PreTrainedConfig:
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
    name, fields = made[family]
    return getattr(transformers, name)(**fields)


def tiny_model(family: str, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(family), attn_implementation="sdpa")
    return model.float().eval()


def save_tiny(family: str, folder: Path, seed: int = 0) -> Path:
    """Write a tiny model as a transformers folder and return it."""
    tiny_model(family, seed).save_pretrained(folder)
    return folder


def target_config(folder: Path | str, **fields: Any) -> TargetConfig:
    values: dict[str, Any] = {
        "path": str(folder),
        "revision": None,
        "num_features": 2,
        "layer_ids": None,
        "dtype": "float32",
        "attn_implementation": "sdpa",
        "trust_remote_code": False,
    }
    return TargetConfig(**{**values, **fields})
