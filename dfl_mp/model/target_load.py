"""Loading a target as a whole causal language model. The ends that drafters borrow: `frozen_ends.py`.

A load that leaves a weight at random, or that fails, is a ConfigError naming `target.path`; nothing is trained past it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from dfl_mp.config import TargetConfig
from dfl_mp.errors import ConfigError
from dfl_mp.model import target_dummy
from dfl_mp.model.frozen_ends import make_ends
from dfl_mp.model.hub import reason
from dfl_mp.model.shapes import FrozenEnds
from dfl_mp.model.target_spec import read_config
from dfl_mp.specs import EndNames, TargetSpec


def plain_attention(config: TargetConfig) -> str:
    """transformers' name for attention with masks."""
    return "eager" if config.attention == "eager" else "sdpa"


def load_causal_model(spec: TargetSpec, config: TargetConfig, device: torch.device | str) -> PreTrainedModel:
    """The unmodified target on `device`, frozen, in `config.dtype`. Raises ConfigError naming `target.path`."""
    if config.load_format == "dummy":
        model = empty_model(spec, config)
        target_dummy.fill(model, device)
        return model.eval().requires_grad_(False)
    return read_causal_model(spec, config).to(device)


def load_decoder(
    spec: TargetSpec, config: TargetConfig, device: torch.device | str
) -> tuple[PreTrainedModel, nn.ModuleList]:
    """The text decoder up to the last layer that is a feature, without its final norm, on `device`; and its layers.

    The rest never reaches the device; dummy weights are made there, and nothing of them on the host.
    """
    dummy = config.load_format == "dummy"
    model = empty_model(spec, config) if dummy else read_causal_model(spec, config)
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


def read_causal_model(spec: TargetSpec, config: TargetConfig) -> PreTrainedModel:
    """The unmodified target on the CPU, frozen."""
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


def ends_of(model: PreTrainedModel, spec: TargetSpec, device: torch.device | str) -> FrozenEnds:
    """The ends of a loaded model; on its own device they share its memory."""
    head = model.get_output_embeddings()
    _refuse_bias(head, spec)
    embed_VH, head_VH = model.get_input_embeddings().weight, head.weight
    tied = head_VH is embed_VH
    embed_VH = embed_VH.detach()
    return make_ends(spec, embed_VH, embed_VH if tied else head_VH.detach(), device, embed_VH.dtype)


def _refuse_bias(head: nn.Module, spec: TargetSpec) -> None:
    if getattr(head, "bias", None) is not None:
        raise ConfigError(f"target.path: {spec.path}: its head has a bias, which no reader of drafters applies")


def empty_model(spec: TargetSpec, config: TargetConfig) -> PreTrainedModel:
    """The unmodified target without memory, on `meta`; in float32 where `config.dtype` is still "auto"."""
    dtype = torch.float32 if config.dtype == "auto" else getattr(torch, config.dtype)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            read_config(spec.path, config),
            trust_remote_code=config.trust_remote_code,
            dtype=dtype,
            attn_implementation=plain_attention(config),
        )


def end_names(spec: TargetSpec, config: TargetConfig) -> EndNames:
    """Names of the embedding and of the head in the model's state dict. Raises ConfigError for a head with a bias."""
    model = empty_model(spec, config)
    embed, head = model.get_input_embeddings(), model.get_output_embeddings()
    _refuse_bias(head, spec)
    names = {id(module): name for name, module in model.named_modules(remove_duplicate=False)}
    whole = read_config(spec.path, config)
    configs = (whole, whole.get_text_config(decoder=True))
    return EndNames(
        embed=f"{names[id(embed)]}.weight",
        head=f"{names[id(head)]}.weight",
        tied=any(getattr(c, "tie_word_embeddings", False) for c in configs),
    )
