"""Loading a target: whole causal language models, and the embedding and head alone for drafters.

A load that leaves a weight at random, or that fails, is a ConfigError naming `target.path`; nothing is trained past it.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import cached_file
from transformers.utils.logging import disable_progress_bar

from dfl_mp.config import TargetConfig
from dfl_mp.errors import ConfigError
from dfl_mp.model import target_dummy
from dfl_mp.model.hub import reason
from dfl_mp.model.shapes import FrozenEnds
from dfl_mp.model.target_spec import read_config
from dfl_mp.specs import TargetSpec


def plain_attention(config: TargetConfig) -> str:
    """transformers' name for attention with masks."""
    return "eager" if config.attention == "eager" else "sdpa"


def load_causal_model(spec: TargetSpec, config: TargetConfig, device: torch.device | str) -> PreTrainedModel:
    """The unmodified target on `device`, frozen, in `config.dtype`. Raises ConfigError naming `target.path`."""
    if config.load_format == "dummy":
        model = empty_model(spec, config)
        target_dummy.fill(model, device)
        return model.eval().requires_grad_(False)
    return _read_causal_model(spec, config).to(device)


def load_decoder(
    spec: TargetSpec, config: TargetConfig, device: torch.device | str
) -> tuple[PreTrainedModel, nn.ModuleList]:
    """The text decoder up to the last layer that is a feature, without its final norm, on `device`; and its layers.

    The rest never reaches the device; dummy weights are made there, and nothing of them on the host.
    """
    dummy = config.load_format == "dummy"
    model = empty_model(spec, config) if dummy else _read_causal_model(spec, config)
    decoder, name, layers = decoder_and_layers(model, spec.num_layers, spec.path)
    prefix = target_dummy.dotted_prefix(model, decoder)
    del model
    layers = layers[: spec.layer_ids[-1] + 1]
    decoder.set_submodule(name, layers)
    for norm in ("norm", "final_layer_norm", "final_layernorm", "ln_f"):
        if isinstance(getattr(decoder, norm, None), nn.Module):
            setattr(decoder, norm, nn.Identity())
    if dummy:
        target_dummy.fill(decoder, device, prefix)
    return decoder.to(device).eval().requires_grad_(False), layers


def _read_causal_model(spec: TargetSpec, config: TargetConfig) -> PreTrainedModel:
    read_config(spec.path, config)
    disable_progress_bar()
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            spec.path,
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
            local_files_only=Path(spec.path).is_dir(),
            dtype=getattr(torch, config.dtype),
            attn_implementation=plain_attention(config),
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, ImportError, KeyError, SafetensorError) as error:
        raise ConfigError(f"target.path: {spec.path} cannot be loaded: {reason(error)}") from None
    absent = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if absent:
        raise ConfigError(f"target.path: {spec.path} lacks {len(absent)} weights, the first is {absent[0]}")
    return model.eval().requires_grad_(False)


def decoder_and_layers(model: PreTrainedModel, num_layers: int, path: str) -> tuple[nn.Module, str, nn.ModuleList]:
    """The text decoder of a causal model, the dotted name of its list of T layers, and that list."""
    decoder = model.get_decoder()
    for name, module in decoder.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return decoder, name, module
    raise ConfigError(f"target.path: {path}: no list of {num_layers} decoder layers in {type(model).__name__}")


def frozen_ends(spec: TargetSpec, config: TargetConfig, device: torch.device | str) -> FrozenEnds:
    """The target's embedding and head, [V, H] each, without the model between them.

    Read from the checkpoint's safetensors by name; tied tables are one tensor. Where the names on disk are not those of
    the model (old checkpoints, other formats) the whole model is loaded on the CPU, and dropped.
    """
    embed_name, head_name = _end_names(spec, config)
    if config.load_format == "dummy":
        return _dummy_ends(spec, config, (embed_name, head_name), device)
    read = {name: _read_tensor(spec, config, name) for name in {embed_name, head_name}}
    tied = _is_tied(spec, config)
    embed, head = read[embed_name], read[head_name]
    if tied and (embed is None) != (head is None):
        embed = head = embed if head is None else head
    elif tied and embed is not None and torch.equal(embed, head):
        head = embed
    if embed is None or head is None:
        return ends_of(_read_causal_model(spec, config), spec, device)
    return _ends(spec, embed, head, device, getattr(torch, config.dtype))


def _dummy_ends(
    spec: TargetSpec, config: TargetConfig, names: tuple[str, str], device: torch.device | str
) -> FrozenEnds:
    dtype, shape = getattr(torch, config.dtype), (spec.vocab_size, spec.hidden_size)
    embed = target_dummy.random_table(names[0], shape, dtype, device)
    head = embed if _is_tied(spec, config) else target_dummy.random_table(names[1], shape, dtype, device)
    return _ends(spec, embed, head, device, dtype)


def ends_of(model: PreTrainedModel, spec: TargetSpec, device: torch.device | str) -> FrozenEnds:
    """The ends of a loaded model; on its own device they share its memory."""
    head = model.get_output_embeddings()
    _refuse_bias(head, spec)
    embed_VH, head_VH = model.get_input_embeddings().weight, head.weight
    tied = head_VH is embed_VH
    embed_VH = embed_VH.detach()
    return _ends(spec, embed_VH, embed_VH if tied else head_VH.detach(), device, embed_VH.dtype)


def _ends(
    spec: TargetSpec, embed_VH: Tensor, head_VH: Tensor, device: torch.device | str, dtype: torch.dtype
) -> FrozenEnds:
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


def _refuse_bias(head: nn.Module, spec: TargetSpec) -> None:
    if getattr(head, "bias", None) is not None:
        raise ConfigError(f"target.path: {spec.path}: its head has a bias, which no reader of drafters applies")


def empty_model(spec: TargetSpec, config: TargetConfig) -> PreTrainedModel:
    """The unmodified target without memory, on `meta`."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            read_config(spec.path, config),
            trust_remote_code=config.trust_remote_code,
            dtype=getattr(torch, config.dtype),
            attn_implementation=plain_attention(config),
        )


def _end_names(spec: TargetSpec, config: TargetConfig) -> tuple[str, str]:
    """Names of the embedding and of the head in the model's state dict."""
    model = empty_model(spec, config)
    embed, head = model.get_input_embeddings(), model.get_output_embeddings()
    _refuse_bias(head, spec)
    names = {id(module): name for name, module in model.named_modules(remove_duplicate=False)}
    return f"{names[id(embed)]}.weight", f"{names[id(head)]}.weight"


def _is_tied(spec: TargetSpec, config: TargetConfig) -> bool:
    whole = read_config(spec.path, config)
    configs = (whole, whole.get_text_config(decoder=True))
    return any(getattr(c, "tie_word_embeddings", False) for c in configs)


def _read_tensor(spec: TargetSpec, config: TargetConfig, name: str) -> Tensor | None:
    """One tensor of the checkpoint, or None if no safetensors file has it under this name."""

    def find(file: str) -> str | None:
        return cached_file(spec.path, file, revision=config.revision, _raise_exceptions_for_missing_entries=False)

    index = find("model.safetensors.index.json")
    if index is not None:
        file = json.loads(Path(index).read_text())["weight_map"].get(name)
        path = find(file) if file else None
    else:
        path = find("model.safetensors")
    if path is None:
        return None
    try:
        with safe_open(path, framework="pt") as tensors:
            return tensors.get_tensor(name) if name in set(tensors.keys()) else None
    except SafetensorError as error:
        raise ConfigError(f"target.path: {path}: {reason(error)}") from None
