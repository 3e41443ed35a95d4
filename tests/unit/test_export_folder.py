"""The exported folder: its tensors, its config, and what a damaged one is answered with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dfl_mp.errors import CheckpointError
from dfl_mp.export import export_drafter, load_exported, tensor_shapes
from dfl_mp.model.drafter import Drafter
from dfl_mp.model.target_spec import describe_target, drafter_spec
from dfl_mp.specs import DrafterSpec, TargetSpec
from tests.unit.test_target_spec import drafter_config
from tests.unit.tiny_targets import target_config, tiny_config

torch.set_num_threads(1)
SLIDING = {"layer_types": ("full_attention", "sliding_attention"), "sliding_window": 6}


def specs(folder: Path, family: str = "qwen3", **fields: object) -> tuple[DrafterSpec, TargetSpec]:
    tiny_config(family).save_pretrained(folder)
    target = describe_target(target_config(folder))
    return drafter_spec(drafter_config(**fields), target, mask_token_id=60), target


def weights(spec: DrafterSpec) -> dict[str, torch.Tensor]:
    drafter = Drafter(spec)
    drafter.init_weights(1)
    return drafter.state_dict()


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gpt_neox"])
@pytest.mark.parametrize("fields", [{}, SLIDING, {**SLIDING, "is_causal": False}, {"head_dim": 6, "num_layers": 3}])
def test_round_trip(tmp_path: Path, family: str, fields: dict) -> None:
    spec, target = specs(tmp_path / "target", family, **fields)
    state = weights(spec)
    found_spec, found = load_exported(export_drafter(state, spec, target, tmp_path / "run" / "export"))
    assert found_spec == spec
    assert found.keys() == state.keys() and len(found) == 11 * spec.num_layers + 3
    for name, tensor in found.items():
        assert tensor.dtype == torch.bfloat16 and torch.equal(tensor, state[name].to(torch.bfloat16))


def test_files(tmp_path: Path) -> None:
    spec, target = specs(tmp_path / "target")
    folder = export_drafter(weights(spec), spec, target, tmp_path / "export")
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["export", "target"]
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()} == tensor_shapes(spec)  # noqa: SIM118


@pytest.mark.parametrize("fields", [{}, SLIDING])
def test_transformers_parses_the_config(tmp_path: Path, fields: dict) -> None:
    spec, target = specs(tmp_path / "target", "gemma3", **fields)
    folder = export_drafter(weights(spec), spec, target, tmp_path / "export")
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    assert type(config) is transformers.Qwen3Config
    assert config.head_dim == 8 and config.vocab_size == 61 and config.num_target_layers == 6
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 1e6}
    assert tuple(config.layer_types) == spec.layer_types and config.sliding_window == spec.sliding_window
    assert config.dflash_config["target_layer_ids"] == list(target.layer_ids)
    assert config.dflash_config["input_embedding_scale"] == 32**0.5
    assert config.dflash_config["final_logit_softcapping"] == 3.0
    assert config.dtype == torch.bfloat16


def test_rope_scaling_survives_in_both_spellings(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 5e5}
    spec, target = specs(tmp_path / "target")
    spec = spec.model_copy(update={"rope_parameters": rope})
    folder = export_drafter(weights(spec), spec, target, tmp_path / "export")
    raw = json.loads((folder / "config.json").read_text())
    assert raw["rope_theta"] == 5e5 and raw["rope_scaling"] == {k: v for k, v in rope.items() if k != "rope_theta"}
    assert transformers.AutoConfig.from_pretrained(folder).rope_parameters == rope


def test_an_old_export_is_replaced_whole(tmp_path: Path) -> None:
    spec, target = specs(tmp_path / "target")
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "left.txt").write_text("old")
    export_drafter(weights(spec), spec, target, tmp_path / "export")
    assert not (tmp_path / "export" / "left.txt").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["export", "target"]


def test_a_refused_export_leaves_the_old_one(tmp_path: Path) -> None:
    spec, target = specs(tmp_path / "target")
    state = weights(spec)
    export_drafter(state, spec, target, tmp_path / "export")
    for name, bad in (
        ("fc.weight", torch.zeros(3, 3)),
        ("norm.weight", torch.full((32,), float("nan"))),
        ("extra.weight", torch.zeros(1)),
    ):
        with pytest.raises(CheckpointError, match=name):
            export_drafter({**state, name: bad}, spec, target, tmp_path / "export")
    with pytest.raises(CheckpointError, match=r"fc\.weight is missing"):
        export_drafter({k: v for k, v in state.items() if k != "fc.weight"}, spec, target, tmp_path / "export")
    load_exported(tmp_path / "export")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["export", "target"]


def test_damaged_exports_are_named(tmp_path: Path) -> None:
    spec, target = specs(tmp_path / "target")
    folder = export_drafter(weights(spec), spec, target, tmp_path / "export")
    config = json.loads((folder / "config.json").read_text())

    def fails(says: str) -> None:
        with pytest.raises(CheckpointError, match=says):
            load_exported(folder)

    for change, says in (
        ({"head_dim": "x"}, r"config\.json: head_dim"),
        ({"architectures": ["Other"]}, r"config\.json: architectures"),
        ({"dflash_config": {"mask_token_id": 1}}, r"config\.json: target_layer_ids is missing"),
        ({"dflash_config": None}, r"config\.json: .*type"),
        ({"num_hidden_layers": 3}, r"model\.safetensors: layers\.2.* is missing"),
        ({"hidden_size": 16}, r"model\.safetensors: .*expected"),
    ):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        fails(says)
    (folder / "config.json").write_text("{")
    fails(r"config\.json: cannot be read")
    (folder / "config.json").write_text(json.dumps(config))
    state = load_file(folder / "model.safetensors")
    save_file({**state, "model.norm.weight": torch.zeros(2)}, folder / "model.safetensors")
    fails(r"model\.safetensors: model\.norm\.weight is not")
    (folder / "model.safetensors").write_bytes(b"torn")
    fails(r"model\.safetensors: cannot be read")
    (folder / "model.safetensors").unlink()
    fails(r"model\.safetensors: cannot be read")
