"""The target's embedding and head, which drafters borrow, without the model between them.

A drafter that starts again should not load transformers for two matrices: their names come from `prepare`.
Legend: V vocabulary · H hidden size.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dfl_mp.config import TargetConfig
from dfl_mp.errors import ConfigError
from dfl_mp.model.shapes import FrozenEnds
from dfl_mp.model.target_dummy import random_table
from dfl_mp.specs import EndNames, TargetSpec


def frozen_ends(spec: TargetSpec, config: TargetConfig, device: torch.device | str) -> FrozenEnds:
    """Embedding and head [V, H], in `config.dtype`. Raises ConfigError naming `target.path`.

    Read from the checkpoint's safetensors by name; tied tables are one tensor. Where the names on disk are not those of
    the model (old checkpoints, other formats) the whole model is loaded on the CPU, and dropped.
    """
    names = spec.ends or _look_up(spec, config)
    if config.load_format == "dummy":
        return _dummy_ends(spec, config, names, device)
    read = {name: _read_tensor(spec, config, name) for name in {names.embed, names.head}}
    embed, head = read[names.embed], read[names.head]
    if names.tied and (embed is None) != (head is None):
        embed = head = embed if head is None else head
    elif names.tied and embed is not None and torch.equal(embed, head):
        head = embed
    if embed is None or head is None:
        from dfl_mp.model.target_load import ends_of, read_causal_model

        return ends_of(read_causal_model(spec, config), spec, device)
    return make_ends(spec, embed, head, device, getattr(torch, config.dtype))


def make_ends(
    spec: TargetSpec, embed_VH: Tensor, head_VH: Tensor, device: torch.device | str, dtype: torch.dtype
) -> FrozenEnds:
    """On `device` in `dtype`; tables that are one tensor stay one. Raises ConfigError for another shape."""
    shape = (spec.vocab_size, spec.hidden_size)
    for name, table in (("embedding", embed_VH), ("head", head_VH)):
        if tuple(table.shape) != shape:
            raise ConfigError(f"target.path: {spec.path}: its {name} is {tuple(table.shape)}, a drafter needs {shape}")
    embed = embed_VH.to(device, dtype)
    return FrozenEnds(
        embed_VH=embed,
        head_VH=embed if head_VH is embed_VH else head_VH.to(device, dtype),
        embedding_scale=spec.embedding_scale,
        logit_multiplier=spec.logit_multiplier,
        final_logit_softcapping=spec.final_logit_softcapping,
    )


def _look_up(spec: TargetSpec, config: TargetConfig) -> EndNames:
    from dfl_mp.model.target_load import end_names

    return end_names(spec, config)


def _dummy_ends(spec: TargetSpec, config: TargetConfig, names: EndNames, device: torch.device | str) -> FrozenEnds:
    dtype, shape = getattr(torch, config.dtype), (spec.vocab_size, spec.hidden_size)
    embed = random_table(names.embed, shape, dtype, device)
    return make_ends(
        spec, embed, embed if names.tied else random_table(names.head, shape, dtype, device), device, dtype
    )


def _read_tensor(spec: TargetSpec, config: TargetConfig, name: str) -> Tensor | None:
    """One tensor of the checkpoint, or None if no safetensors file has it under this name."""
    index = _find(spec, config, "model.safetensors.index.json")
    if index is not None:
        file = json.loads(index.read_text())["weight_map"].get(name)
        path = _find(spec, config, file) if file else None
    else:
        path = _find(spec, config, "model.safetensors")
    if path is None:
        return None
    try:
        with safe_open(path, framework="pt") as tensors:
            return tensors.get_tensor(name) if name in set(tensors.keys()) else None
    except SafetensorError as error:
        raise ConfigError(f"target.path: {path}: {error}") from None


def _find(spec: TargetSpec, config: TargetConfig, file: str) -> Path | None:
    """The file of a folder, or of the hub or its cache; None where there is none."""
    if Path(spec.path).is_dir():
        path = Path(spec.path) / file
        return path if path.is_file() else None
    # Not at the top: a folder does without it.
    from huggingface_hub import errors, hf_hub_download

    from dfl_mp.model.hub import reason

    try:
        return Path(hf_hub_download(spec.path, file, revision=config.revision))
    except errors.EntryNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"target.path: {spec.path}: {file} cannot be loaded: {reason(error)}") from None
