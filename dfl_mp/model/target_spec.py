"""Facts of a target, read from its config alone: no weights are loaded.

`describe_target` and `drafter_spec` are what `prepare` calls first; everything they refuse is a ConfigError that names
the field. Legend: T decoder layers of the target, F layers used, H hidden size, V rows of the embedding.
"""

from __future__ import annotations

import logging
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

from transformers import AutoConfig, GenerationConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from dfl_mp.config import DrafterConfig, TargetConfig
from dfl_mp.errors import ConfigError
from dfl_mp.inputs import find_target
from dfl_mp.model.hub import reason
from dfl_mp.specs import DrafterSpec, TargetSpec

SCALED_EMBEDDING = ("gemma", "recurrent_gemma", "vaultgemma")
"""Prefixes of the model types whose embedding is multiplied by sqrt(H)."""
MULTIPLIED_LOGITS = ("hyperclovax",)
"""Model types that multiply by `logits_scaling`; the others divide by it."""


def default_layer_ids(num_layers: int, num_features: int) -> tuple[int, ...]:
    """F layers spread over a target of T layers, `[T // 2]` for one; Python's rounding.

    >>> default_layer_ids(36, 5)
    (1, 9, 17, 25, 33)
    """
    if num_features == 1:
        return (num_layers // 2,)
    span = num_layers - 4
    return tuple(round(1 + i * span / (num_features - 1)) for i in range(num_features))


def describe_target(config: TargetConfig) -> TargetSpec:
    """Read the target's config.json and choose its feature layers.

    Raises ConfigError naming `target.path` (no such folder, not a causal language model, unknown architecture, hub not
    reachable), `target.layer_ids` or `target.num_features`.
    """
    path = find_target(config.path)
    whole = read_config(path, config)
    text = whole.get_text_config(decoder=True)
    get = lambda *names: _first(text, *names)  # noqa: E731
    hidden, layers, heads = get("hidden_size"), get("num_hidden_layers"), get("num_attention_heads")
    vocab = get("vocab_size")
    if not all(isinstance(n, int) for n in (hidden, layers, heads, vocab)):
        raise ConfigError(
            f"target.path: {path} has no hidden_size, num_hidden_layers, num_attention_heads or vocab_size"
        )
    kind = text.model_type
    return TargetSpec(
        path=path,
        architecture=(whole.architectures or [_causal_class(whole)])[0],
        hidden_size=hidden,
        num_layers=layers,
        vocab_size=vocab,
        layer_ids=_layer_ids(config, layers),
        intermediate_size=get("intermediate_size", "ffn_dim", "n_inner") or 4 * hidden,
        num_attention_heads=heads,
        num_key_value_heads=get("num_key_value_heads") or heads,
        head_dim=get("head_dim") or hidden // heads,
        rms_norm_eps=get("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon") or 1e-6,
        rope_parameters=_rope_parameters(text),
        max_position_embeddings=get("max_position_embeddings") or 2048,
        embedding_scale=_embedding_scale(text, kind, hidden),
        logit_multiplier=_logit_multiplier(text, kind),
        final_logit_softcapping=get("final_logit_softcapping"),
        eos_token_ids=_eos_token_ids(whole, text, path, config),
    )


def read_config(path: str, config: TargetConfig) -> PreTrainedConfig:
    """The transformers config at a resolved path; ConfigError naming `target.path` in one line."""
    folder = Path(find_target(path)).is_dir()
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)
    try:
        found = AutoConfig.from_pretrained(
            path, revision=config.revision, trust_remote_code=config.trust_remote_code, local_files_only=folder
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"target.path: {path}: {reason(error)}") from None
    finally:
        hub.setLevel(level)
    if getattr(found, "is_encoder_decoder", False) or _causal_class(found) is None:
        raise ConfigError(f"target.path: {path}: model type {found.model_type!r} is not a causal language model")
    return found


def drafter_spec(config: DrafterConfig, target: TargetSpec, mask_token_id: int) -> DrafterSpec:
    """The drafter's shapes: what `config` leaves out is the target's. Raises ConfigError naming `drafter.<field>`."""
    heads = config.num_attention_heads or target.num_attention_heads
    kv_heads = config.num_key_value_heads or math.gcd(heads, target.num_key_value_heads)
    head_dim = config.head_dim or target.head_dim
    layer_types = config.layer_types or ("full_attention",) * config.num_layers
    sliding = "sliding_attention" in layer_types
    _check(heads % kv_heads == 0, "num_key_value_heads", f"{kv_heads} does not divide {heads} attention heads")
    _check(head_dim % 2 == 0, "head_dim", f"{head_dim} is odd: rotary positions need pairs")
    _check(
        len(layer_types) == config.num_layers, "layer_types", f"{len(layer_types)} given for {config.num_layers} layers"
    )
    _check(
        sliding or config.sliding_window is None,
        "sliding_window",
        "no layer of drafter.layer_types is sliding_attention",
    )
    _check(not sliding or config.sliding_window is not None, "sliding_window", "is needed by a sliding_attention layer")
    _check(
        not sliding or config.sliding_window >= config.block_size,
        "sliding_window",
        f"{config.sliding_window} is shorter than a block of {config.block_size}",
    )
    _check(
        0 <= mask_token_id < target.vocab_size,
        "mask_token_id",
        f"{mask_token_id} is not a row of the target's embedding of {target.vocab_size} rows",
    )
    return DrafterSpec(
        hidden_size=target.hidden_size,
        num_features=len(target.layer_ids),
        num_layers=config.num_layers,
        block_size=config.block_size,
        mask_token_id=mask_token_id,
        intermediate_size=config.intermediate_size or target.intermediate_size,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=target.rms_norm_eps,
        rope_parameters=target.rope_parameters,
        max_position_embeddings=target.max_position_embeddings,
        layer_types=layer_types,
        sliding_window=config.sliding_window if sliding else None,
        is_causal=True if config.is_causal is None else config.is_causal,
    )


def _check(holds: bool, field: str, text: str) -> None:
    if not holds:
        raise ConfigError(f"drafter.{field}: {text}")


def _layer_ids(config: TargetConfig, num_layers: int) -> tuple[int, ...]:
    """The ids of `config` checked, or the default ones. The last layer is refused: transformers returns it normed."""
    if config.layer_ids is not None:
        ids, field = config.layer_ids, "target.layer_ids"
        if not ids:
            raise ConfigError(f"{field}: is empty")
        if max(ids) >= num_layers:
            raise ConfigError(f"{field}: layer {max(ids)} of a target that has layers 0 to {num_layers - 1}")
        if max(ids) == num_layers - 1:
            raise ConfigError(f"{field}: {num_layers - 1} is the last layer, whose output is not usable as a feature")
    else:
        most = max(1, num_layers - 3)
        if num_layers < 2 or config.num_features > most:
            raise ConfigError(
                f"target.num_features: {config.num_features} is too many for a target of {num_layers} layers;"
                f" at most {most}"
            )
        ids, field = default_layer_ids(num_layers, config.num_features), "target.num_features"
    if any(a >= b for a, b in pairwise(ids)):
        raise ConfigError(f"{field}: layers {list(ids)} are not strictly increasing")
    return ids


def _causal_class(config: PreTrainedConfig) -> str | None:
    remote = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type) or remote


def _first(config: PreTrainedConfig, *names: str) -> Any:
    """The first of `names` that the config has and that is not None. A list (one value a layer) gives its largest."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return max(value) if isinstance(value, list | tuple) else value
    return None


def _rope_parameters(config: PreTrainedConfig) -> dict[str, Any]:
    """Rotary parameters of the target's full-attention layers, for a drafter that rotates the whole head.

    Partial and multi-axis rotation are dropped, theta is kept. `long_factor` lists fit a rotated part only, so a
    partially rotated longrope loses its scaling too.
    """
    rope = dict(getattr(config, "rope_parameters", None) or {})
    rope = dict(rope.get("full_attention") or rope)
    rope = {k: v for k, v in rope.items() if not k.startswith("mrope") and not isinstance(v, dict)}
    partial = rope.pop("partial_rotary_factor", 1.0) != 1.0
    theta = rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0
    if "rope_type" not in rope or rope["rope_type"] == "proportional" or (partial and rope["rope_type"] == "longrope"):
        return {"rope_type": "default", "rope_theta": float(theta)}
    return {**rope, "rope_theta": float(theta)}


def _embedding_scale(config: PreTrainedConfig, kind: str, hidden: int) -> float:
    if kind.startswith(SCALED_EMBEDDING):
        return math.sqrt(hidden)
    if getattr(config, "scale_embedding", False):
        return math.sqrt(hidden)
    return float(_first(config, "embedding_multiplier", "scale_emb") or 1.0)


def _logit_multiplier(config: PreTrainedConfig, kind: str) -> float:
    scaling = getattr(config, "logits_scaling", None)
    if scaling:
        return float(scaling) if kind in MULTIPLIED_LOGITS else 1.0 / scaling
    return float(_first(config, "logit_scale", "lm_head_multiplier") or 1.0)


def _eos_token_ids(whole: PreTrainedConfig, text: PreTrainedConfig, path: str, config: TargetConfig) -> tuple[int, ...]:
    """Stop tokens of config.json and of generation_config.json (chat models name the end of turn only there)."""
    try:
        generation = GenerationConfig.from_pretrained(path, revision=config.revision).eos_token_id
    except (OSError, ValueError):
        generation = None
    found: set[int] = set()
    for ids in (*(getattr(c, "eos_token_id", None) for c in (whole, text)), generation):
        found.update([] if ids is None else [ids] if isinstance(ids, int) else ids)
    return tuple(sorted(found))
