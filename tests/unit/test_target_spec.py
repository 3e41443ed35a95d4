"""What is read from a target's config, and what is refused, by field name."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import transformers

from dfl_mp.config import DrafterConfig
from dfl_mp.errors import ConfigError
from dfl_mp.model.target_spec import default_layer_ids, describe_target, drafter_spec
from dfl_mp.specs import TargetSpec
from tests.unit.tiny_targets import GROUPED, LAYERS, SHAPE, target_config, tiny_config


def describe(folder: Path, model: transformers.PreTrainedConfig, **fields: object) -> TargetSpec:
    model.save_pretrained(folder)
    return describe_target(target_config(folder, **fields))


def drafter_config(**fields: object) -> DrafterConfig:
    values = dict.fromkeys(DrafterConfig.model_fields) | {
        "num_layers": 2, "block_size": 4, "dtype": "float32", "attention": "auto", "float8": False,
        "activation_memory_budget": 1.0
    }  # fmt: skip
    return DrafterConfig(**{**values, **fields})


@pytest.mark.parametrize(
    ("layers", "features", "ids"),
    [(36, 5, (1, 9, 17, 25, 33)), (28, 5, (1, 7, 13, 19, 25)), (6, 3, (1, 2, 3)), (30, 1, (15,)), (5, 2, (1, 2))],
)
def test_default_layer_ids(layers: int, features: int, ids: tuple[int, ...]) -> None:
    assert default_layer_ids(layers, features) == ids


def test_qwen3(tmp_path: Path) -> None:
    spec = describe(tmp_path, transformers.Qwen3Config(num_hidden_layers=36, eos_token_id=7), num_features=5)
    assert spec.layer_ids == (1, 9, 17, 25, 33)
    assert (spec.hidden_size, spec.head_dim, spec.num_key_value_heads) == (4096, 128, 32)
    assert (spec.embedding_scale, spec.logit_multiplier, spec.final_logit_softcapping) == (1.0, 1.0, None)
    assert spec.eos_token_ids == (7,)


def test_stop_tokens_come_from_the_generation_config_too(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 2]}))
    assert describe(tmp_path, tiny_config("qwen3")).eos_token_ids == (2, 9)


def test_partial_rotary_without_head_dim(tmp_path: Path) -> None:
    """A drafter rotates the whole head with the target's theta."""
    spec = describe(
        tmp_path, transformers.GPTNeoXConfig(**SHAPE, rotary_pct=0.25, rotary_emb_base=777, layer_norm_eps=1e-4)
    )
    assert (spec.head_dim, spec.num_key_value_heads, spec.rms_norm_eps) == (8, 4, 1e-4)
    assert spec.rope_parameters == {"rope_type": "default", "rope_theta": 777.0}


def test_rope_scaling_is_kept(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 5e5}
    assert describe(tmp_path, transformers.Qwen3Config(**GROUPED, rope_parameters=rope)).rope_parameters == rope


def test_scales_and_caps(tmp_path: Path) -> None:
    gemma = describe(tmp_path / "gemma", tiny_config("gemma3"))
    assert gemma.embedding_scale == math.sqrt(32) and gemma.final_logit_softcapping == 3.0
    assert gemma.rope_parameters["rope_theta"] == 1e6
    granite = transformers.GraniteConfig(**GROUPED, embedding_multiplier=12.0, logits_scaling=8.0)
    spec = describe(tmp_path / "granite", granite)
    assert (spec.embedding_scale, spec.logit_multiplier) == (12.0, 0.125)
    cohere = describe(tmp_path / "cohere", transformers.CohereConfig(**GROUPED, logit_scale=0.25))
    assert cohere.logit_multiplier == 0.25


def test_text_part_of_a_multimodal_wrapper(tmp_path: Path) -> None:
    text = tiny_config("gemma3")
    spec = describe(
        tmp_path, transformers.Gemma3Config(text_config=text.to_dict(), vision_config={"num_hidden_layers": 2})
    )
    assert (spec.num_layers, spec.hidden_size, spec.architecture) == (LAYERS, 32, "Gemma3ForConditionalGeneration")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (None, "config.json"),
        ("{", "JSON"),
        ('{"a": 1}', "model_type"),
        ('{"model_type": "nope"}', "nope"),
        ('{"model_type": "t5"}', "causal"),
    ],
)
def test_a_folder_that_is_not_a_target(tmp_path: Path, config: str | None, says: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match=rf"target\.path: .*{says}") as error:
        describe_target(target_config(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", ["/no/such/folder", "./nowhere", "no-slash", "builtin:other", "a/b/c"])
def test_a_path_that_is_no_folder(path: str) -> None:
    with pytest.raises(ConfigError, match=r"target\.path"):
        describe_target(target_config(path))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"layer_ids": (1, 99)}, "target.layer_ids: layer 99"),
        ({"layer_ids": (3, 1)}, "target.layer_ids: .*increasing"),
        ({"layer_ids": (1, 1)}, "target.layer_ids: .*increasing"),
        ({"layer_ids": (1, 5)}, "target.layer_ids: 5 is the last"),
        ({"layer_ids": ()}, "target.layer_ids: is empty"),
        ({"num_features": 4}, "target.num_features: 4 .*at most 3"),
    ],
)
def test_layers_that_cannot_be_features(tmp_path: Path, fields: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        describe(tmp_path, tiny_config("qwen3"), **fields)


def test_the_drafter_takes_the_targets_shapes(tmp_path: Path) -> None:
    target = describe(tmp_path, tiny_config("qwen3"))
    spec = drafter_spec(drafter_config(), target, mask_token_id=60)
    assert (spec.hidden_size, spec.num_features, spec.intermediate_size, spec.head_dim) == (32, 2, 48, 8)
    assert spec.layer_types == ("full_attention", "full_attention") and spec.sliding_window is None


@pytest.mark.parametrize(
    ("fields", "mask", "says"),
    [
        ({}, 61, "drafter.mask_token_id: 61"),
        ({"layer_types": ("full_attention",)}, 0, "drafter.layer_types"),
        ({"layer_types": ("full_attention", "sliding_attention")}, 0, "drafter.sliding_window"),
        ({"layer_types": ("sliding_attention",) * 2, "sliding_window": 3}, 0, "drafter.sliding_window"),
        ({"sliding_window": 8}, 0, "drafter.sliding_window: no layer"),
        ({"num_key_value_heads": 3}, 0, "drafter.num_key_value_heads"),
        ({"head_dim": 7}, 0, "drafter.head_dim"),
    ],
)
def test_drafters_that_do_not_fit(tmp_path: Path, fields: dict, mask: int, says: str) -> None:
    target = describe(tmp_path, tiny_config("qwen3"))
    with pytest.raises(ConfigError, match=says):
        drafter_spec(drafter_config(**fields), target, mask)
