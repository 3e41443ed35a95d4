"""Targets of which only config.json is there: random weights that every user of them agrees on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import dummy_target
from dfl_mp.model.frozen_ends import frozen_ends
from dfl_mp.model.target import load_feature_target
from dfl_mp.model.target_full import load_full_target
from dfl_mp.model.target_spec import describe_target
from tests.unit.tiny_targets import FAMILIES, VOCAB, target_config, tiny_config

torch.set_num_threads(1)


def config_only(family: str, folder: Path, **fields: object):
    """(config, spec) of a folder that holds no weights."""
    written = tiny_config(family, **fields)
    written.save_pretrained(folder)
    config = target_config(folder, load_format="dummy", layer_ids=(0, 2))
    return config, describe_target(config)


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3_5"])
def test_features_of_the_truncated_target_are_those_of_the_whole(family: str, tmp_path: Path) -> None:
    config, spec = config_only(family, tmp_path)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    target, whole = load_feature_target(spec, config, "cpu"), load_full_target(spec, config, "cpu")
    assert torch.equal(before, torch.get_rng_state())
    tokens = torch.arange(12)
    _, expected_TF = whole.forward(tokens, whole.new_cache())
    found = target.features(tokens[None], torch.arange(12)[None], torch.zeros(1, 12, dtype=torch.long))
    torch.testing.assert_close(found[0], expected_TF, atol=1e-4, rtol=1e-4)
    assert found.isfinite().all() and found.std() > 0


@pytest.mark.parametrize("tied", [False, True])
def test_ends_are_the_whole_targets(tied: bool, tmp_path: Path) -> None:
    config, spec = config_only("qwen3", tmp_path, tie_word_embeddings=tied)
    made, whole = frozen_ends(spec, config, "cpu"), load_full_target(spec, config, "cpu").ends()
    assert torch.equal(made.embed_VH, whole.embed_VH) and torch.equal(made.head_VH, whole.head_VH)
    assert (made.embed_VH is made.head_VH) == (whole.embed_VH is whole.head_VH) == tied
    assert made.embed_VH.shape[0] == VOCAB and abs(made.embed_VH.std().item() - 0.02) < 2e-3


def test_weights_are_made_in_the_dtype_asked_for(tmp_path: Path) -> None:
    config, spec = config_only("qwen3", tmp_path)
    target = load_feature_target(spec, config.model_copy(update={"dtype": "float64"}), "cpu")
    assert {p.dtype for p in target.decoder.parameters()} == {torch.float64}
    norms = [p for p in target.decoder.parameters() if p.ndim == 1]
    assert norms and all((p == 1).all() for p in norms)


@pytest.mark.parametrize("size", ["tiny", "qwen3_8b", "27b"])
def test_folders_of_known_sizes_are_described(size: str, tmp_path: Path) -> None:
    config = target_config(dummy_target.write(size, tmp_path), load_format="dummy", num_features=5)
    spec = describe_target(config)
    shape = dummy_target.SHAPES[size]
    assert (spec.hidden_size, spec.num_layers, spec.vocab_size) == (
        shape["hidden_size"],
        shape["num_hidden_layers"],
        shape["vocab_size"],
    )
    assert spec.architecture == "Qwen3ForCausalLM" and len(spec.layer_ids) == 5
