"""What a pack costs a target and a drafter, from shapes alone: what the automatic split of the GPUs stands on.

Floating-point operations over the rate that each side was measured to reach on an H200. On another GPU both change
alike, and only their ratio decides. Shapes come from the target's `config.json`; no torch, no transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfl_mp.config import Config
from dfl_mp.inputs import find_target

PRODUCT_RATE = 790e12
"""FLOP/s of a plain bfloat16 product on an H200."""
TARGET_REACHES, DRAFTER_REACHES = 0.62, 0.70
"""Shares of it that were measured with Qwen3-8B's shapes."""
MEMORY_RATE, LINK_RATE = 3.5e12, 250e9
"""Bytes/s of the device memory, and what an all-reduce gets between two GPUs."""
OPTIMIZER_BYTES = 34
"""Moved for one parameter: gradient, master and moments in float32, the compute copy, the norm."""
ANCHOR_SHARE = 0.5
"""Anchors a token where the data decide: answers are over half of a conversation."""


@dataclass(frozen=True)
class PackCost:
    """Seconds: of one pack on a target and on a drafter, of a step's update, of its sum over drafters."""

    target_s: float
    drafter_s: float
    update_s: float
    reduce_s: float

    def step_s(self, targets: int, drafters: int, packs_per_step: int) -> float:
        """Of an optimizer step on so many GPUs: the slower side decides, and ⌈G/D⌉ packs come one after another.

        >>> PackCost(1.0, 2.0, 0.0, 0.0).step_s(targets=2, drafters=5, packs_per_step=24)
        12.0
        """
        computing = -(-packs_per_step // drafters) * self.drafter_s
        summing = self.update_s + (self.reduce_s if drafters > 1 else 0.0)
        return max(packs_per_step * self.target_s / targets, computing + summing)


DEFAULT = PackCost(target_s=0.114, drafter_s=0.128, update_s=0.013, reduce_s=0.03)
"""Qwen3-8B, a row of 4096 tokens with 512 anchors: for a target whose shapes are not known here."""


def of(config: Config) -> PackCost:
    """Of the run that the config describes; DEFAULT where the target's `config.json` is not on this machine, and where
    the split is given anyway."""
    given = config.cluster.targets is not None and config.cluster.drafters is not None
    found = None if given else _read(config)
    try:
        return estimate(found.get("text_config", found), config) if found else DEFAULT
    except (KeyError, TypeError, ZeroDivisionError):
        return DEFAULT


def estimate(shape: Mapping[str, Any], config: Config) -> PackCost:
    """`shape` is a decoder's part of `config.json`. Raises KeyError for one without the usual names."""
    data, drafter = config.data, config.drafter
    tokens = data.rows_per_pack * data.row_tokens
    anchors = data.rows_per_pack * (data.anchors_per_row or round(data.row_tokens * ANCHOR_SHARE))
    H, heads = shape["hidden_size"], shape["num_attention_heads"]
    q, kv = (n * (shape.get("head_dim") or H // heads) for n in (heads, shape.get("num_key_value_heads") or heads))
    layers = _layers(shape["num_hidden_layers"], config)
    attention = 4 * q * tokens * data.row_tokens / 4
    target = layers * (2 * tokens * (2 * H * (q + kv) + 3 * H * _active(shape)) + attention)

    own_q = (drafter.num_attention_heads or heads) * (drafter.head_dim or q // heads)
    own_kv = (
        kv if drafter.num_key_value_heads is None else drafter.num_key_value_heads * (drafter.head_dim or q // heads)
    )
    inner = drafter.intermediate_size or shape["intermediate_size"]
    features = config.target.num_features if config.target.layer_ids is None else len(config.target.layer_ids)
    slots = anchors * drafter.block_size
    layer = 4 * tokens * H * own_kv + 4 * slots * H * (own_q + own_kv) + 6 * slots * H * inner
    pairs = slots * (data.row_tokens / 4 + drafter.block_size)
    work = 3 * (2 * tokens * features * H * H + drafter.num_layers * layer)
    work += 4 * anchors * (drafter.block_size - 1) * H * shape["vocab_size"]
    work += 14 * own_q * pairs * drafter.num_layers
    parameters = drafter.num_layers * (2 * H * (own_q + own_kv) + 3 * H * inner) + features * H * H
    return PackCost(
        target_s=target / TARGET_REACHES / PRODUCT_RATE,
        drafter_s=work / DRAFTER_REACHES / PRODUCT_RATE,
        update_s=parameters * OPTIMIZER_BYTES / MEMORY_RATE,
        reduce_s=2 * parameters * 4 / LINK_RATE,
    )


def _active(shape: Mapping[str, Any]) -> int:
    """Inner width that one token passes: of a mixture of experts those that it is sent to."""
    experts = shape.get("num_experts_per_tok")
    if experts and shape.get("moe_intermediate_size"):
        return int(experts * shape["moe_intermediate_size"])
    return int(shape["intermediate_size"])


def _layers(num_layers: int, config: Config) -> int:
    """How many layers are computed: those up to the last feature."""
    if config.target.layer_ids is not None:
        return max(config.target.layer_ids) + 1
    return num_layers // 2 + 1 if config.target.num_features == 1 else num_layers - 2


def _read(config: Config) -> dict[str, Any] | None:
    """The target's `config.json` from its folder, or from the hub's cache on this machine."""
    path = Path(find_target(config.target.path)) / "config.json"
    if not path.is_file():
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(config.target.path, "config.json", revision=config.target.revision)
        except HFValidationError:
            return None
        if not isinstance(cached, str):
            return None
        path = Path(cached)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
