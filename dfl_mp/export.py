"""The exported drafter: a folder that SGLang, vLLM, transformers and the `dflash` package read unchanged.

`model.safetensors` holds 11·L + 3 bfloat16 tensors without prefix, `config.json` a Qwen3 config with `dflash_config`.
Names and fields: docs/export.md. The folder appears by one rename, complete or not at all.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dfl_mp.errors import CheckpointError
from dfl_mp.log import fsync_path
from dfl_mp.specs import DrafterSpec, TargetSpec

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def tensor_shapes(spec: DrafterSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor of an exported drafter with its shape, 11·L + 3 of them."""
    H, inner, D = spec.hidden_size, spec.intermediate_size, spec.head_dim
    queries, keys = spec.num_attention_heads * D, spec.num_key_value_heads * D
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (H,),
        "post_attention_layernorm": (H,),
        "self_attn.q_proj": (queries, H),
        "self_attn.k_proj": (keys, H),
        "self_attn.v_proj": (keys, H),
        "self_attn.o_proj": (H, queries),
        "self_attn.q_norm": (D,),
        "self_attn.k_norm": (D,),
        "mlp.gate_proj": (inner, H),
        "mlp.up_proj": (inner, H),
        "mlp.down_proj": (H, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (H, spec.num_features * H),
        "hidden_norm.weight": (H,),
        "norm.weight": (H,),
    }
    for i in range(spec.num_layers):
        shapes |= {f"layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def export_config(drafter: DrafterSpec, target: TargetSpec) -> dict[str, Any]:
    """The config.json of an exported drafter.

    `is_causal` is written only where it is false for sliding layers: readers take an absent one as "sliding layers are
    causal, full ones are not", and a true one as "all layers are causal".
    """
    sliding = "sliding_attention" in drafter.layer_types
    rope = drafter.rope_parameters
    scaled = rope.get("rope_type", "default") != "default"
    dflash: dict[str, Any] = {
        "mask_token_id": drafter.mask_token_id,
        "target_layer_ids": list(target.layer_ids),
        "block_size": drafter.block_size,
    }
    if target.embedding_scale != 1.0:
        dflash["input_embedding_scale"] = target.embedding_scale
    if target.logit_multiplier != 1.0:
        dflash["output_multiplier"] = target.logit_multiplier
    if target.final_logit_softcapping is not None:
        dflash["final_logit_softcapping"] = target.final_logit_softcapping
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": drafter.block_size,
        "dflash_config": dflash,
        "num_target_layers": target.num_layers,
        "num_hidden_layers": drafter.num_layers,
        "hidden_size": drafter.hidden_size,
        "intermediate_size": drafter.intermediate_size,
        "head_dim": drafter.head_dim,
        "num_attention_heads": drafter.num_attention_heads,
        "num_key_value_heads": drafter.num_key_value_heads,
        "hidden_act": "silu",
        "rms_norm_eps": drafter.rms_norm_eps,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {k: v for k, v in rope.items() if k != "rope_theta"} if scaled else None,
        "rope_parameters": rope,
        "max_position_embeddings": max(drafter.max_position_embeddings, target.max_position_embeddings),
        "layer_types": list(drafter.layer_types),
        "sliding_window": drafter.sliding_window if sliding else None,
        "use_sliding_window": sliding,
        "max_window_layers": drafter.layer_types.index("sliding_attention") if sliding else drafter.num_layers,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "vocab_size": target.vocab_size,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "initializer_range": 0.02,
        "use_cache": True,
        **({"is_causal": False} if sliding and not drafter.is_causal else {}),
    }


def export_drafter(
    state_dict: Mapping[str, Tensor], drafter: DrafterSpec, target: TargetSpec, folder: Path | str
) -> Path:
    """Write the folder, weights rounded to bfloat16; an older export there is replaced. Returns the folder.

    Raises CheckpointError naming a tensor that is absent, unknown, of another shape, or not finite.
    """
    folder = Path(folder)
    _check_tensors(state_dict, tensor_shapes(drafter), "state dict")
    weights = {name: state_dict[name].detach().to("cpu", torch.bfloat16).contiguous() for name in state_dict}
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise CheckpointError(f"state dict: {name} is not finite")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}"
    staged.mkdir()
    try:
        save_file(weights, staged / WEIGHTS, metadata={"format": "pt"})
        (staged / CONFIG).write_text(json.dumps(export_config(drafter, target), indent=2) + "\n")
        _rename_into_place(staged, folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return folder


def load_exported(folder: Path | str) -> tuple[DrafterSpec, dict[str, Tensor]]:
    """Read an exported folder back: the spec and the bfloat16 tensors. Raises CheckpointError naming file and field."""
    folder = Path(folder)
    spec = _read_spec(folder / CONFIG)
    file = folder / WEIGHTS
    try:
        state_dict = load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from None
    _check_tensors(state_dict, tensor_shapes(spec), str(file))
    return spec, state_dict


def _read_spec(file: Path) -> DrafterSpec:
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from None
    try:
        if config["architectures"] != ["DFlashDraftModel"]:
            raise CheckpointError(f"{file}: architectures is {config['architectures']}, not ['DFlashDraftModel']")
        dflash, layers = config["dflash_config"], config["num_hidden_layers"]
        return DrafterSpec(
            num_features=len(dflash["target_layer_ids"]),
            mask_token_id=dflash["mask_token_id"],
            num_layers=layers,
            layer_types=config["layer_types"],
            is_causal=config.get("is_causal", True),
            **{name: config[name] for name in _SAME},
        )
    except KeyError as error:
        raise CheckpointError(f"{file}: {error.args[0]} is missing") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"{file}: {first['loc'][0]}: {first['msg']}") from None
    except TypeError as error:
        raise CheckpointError(f"{file}: a field has the wrong type: {error}") from None


_SAME = (
    "hidden_size",
    "block_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_parameters",
    "max_position_embeddings",
    "sliding_window",
)
"""Fields of DrafterSpec that config.json has under the same name."""


def _check_tensors(found: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    for name in sorted(shapes.keys() - found.keys()):
        raise CheckpointError(f"{where}: {name} is missing")
    for name in sorted(found.keys() - shapes.keys()):
        raise CheckpointError(f"{where}: {name} is not a tensor of this drafter")
    for name, shape in shapes.items():
        if tuple(found[name].shape) != shape:
            raise CheckpointError(f"{where}: {name} is {tuple(found[name].shape)}, expected {shape}")


def _rename_into_place(staged: Path, folder: Path) -> None:
    """Flush the staged folder to disk and give it its name; an older folder of that name steps aside first."""
    for path in (*staged.iterdir(), staged):
        fsync_path(path)
    if folder.exists():
        old = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}.old"
        folder.rename(old)
        staged.rename(folder)
        shutil.rmtree(old)
    else:
        staged.rename(folder)
    fsync_path(folder.parent)
