"""Features are the hidden states of the unmodified model, each document on its own, whatever it is packed with."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from dfl_mp.errors import ConfigError
from dfl_mp.model.frozen_ends import frozen_ends
from dfl_mp.model.target import FeatureTarget, load_feature_target
from dfl_mp.model.target_load import ends_of
from dfl_mp.model.target_spec import describe_target
from tests.unit.tiny_targets import FAMILIES, VOCAB, save_tiny, target_config, tiny_model

torch.set_num_threads(1)
ALONE = ("opt", "qwen3_5")
"""Masks that do not know packed rows; layers with a recurrent state."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory):
    @cache
    def load(family: str) -> tuple[FeatureTarget, torch.nn.Module]:
        config = target_config(save_tiny(family, tmp_path_factory.mktemp(family)), layer_ids=(0, 2, 4))
        return load_feature_target(describe_target(config), config, "cpu"), tiny_model(family)

    return load


def pack(rows: list[list[int]], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random tokens, positions and documents of rows with the given document lengths; the rest of a row is padding."""
    S = max(sum(lengths) for lengths in rows)
    generator = torch.Generator().manual_seed(seed)
    position_BS, document_BS = torch.zeros(len(rows), S, dtype=torch.long), torch.full((len(rows), S), -1)
    for row, lengths in enumerate(rows):
        start = 0
        for document, length in enumerate(lengths):
            position_BS[row, start : start + length] = torch.arange(length)
            document_BS[row, start : start + length] = document
            start += length
    # What a packer writes behind the last document must not matter.
    position_BS = torch.where(document_BS < 0, torch.randint(0, S, position_BS.shape, generator=generator), position_BS)
    return torch.randint(0, VOCAB, (len(rows), S), generator=generator), position_BS, document_BS


@torch.no_grad()
def direct(model: torch.nn.Module, tokens_T: Tensor) -> Tensor:
    hidden = model(tokens_T[None], use_cache=False, output_hidden_states=True).hidden_states
    return torch.cat([hidden[i + 1] for i in (0, 2, 4)], dim=-1)[0]


rows_of_documents = st.lists(st.lists(st.integers(1, 13), min_size=1, max_size=4), min_size=1, max_size=3)


@pytest.mark.parametrize("family", FAMILIES + ALONE)
@settings(max_examples=6, deadline=None)
@given(rows=rows_of_documents, seed=st.integers(0, 1000))
def test_packed_features_are_those_of_each_document_alone(
    loaded, family: str, rows: list[list[int]], seed: int
) -> None:
    target, model = loaded(family)
    tokens_BS, position_BS, document_BS = pack(rows, seed)
    found = target.features(tokens_BS, position_BS, document_BS)
    assert found.isfinite().all()
    for row, lengths in enumerate(rows):
        for document in range(len(lengths)):
            mine = document_BS[row] == document
            expected = direct(model, tokens_BS[row, mine])
            if family == "qwen3_5":  # a product over the row's tokens in float32; a leak would be of order 1
                assert (found[row, mine] - expected).norm() < 1e-3 * expected.norm()
            else:
                torch.testing.assert_close(found[row, mine], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES + ALONE)
def test_how_documents_are_kept_apart(loaded, family: str) -> None:
    assert loaded(family)[0].packed == (family not in ALONE)


def test_features_go_straight_into_a_slot(loaded) -> None:
    target, _ = loaded("qwen3")
    inputs = pack([[5, 4], [9]], 0)
    slot = torch.full((4, 2, 9, target.width + 8), 7.0)
    out = slot[1, :, :, : target.width]
    assert target.features(*inputs, out=out) is out
    assert torch.equal(slot[1, :, :, : target.width], target.features(*inputs))
    assert (slot[1, :, :, target.width :] == 7).all() and (slot[[0, 2, 3]] == 7).all()


def test_unused_layers_norm_and_head_are_gone(loaded) -> None:
    target, model = loaded("qwen3")
    kept = sum(p.numel() for p in target.decoder.parameters())
    one_layer = sum(p.numel() for p in model.model.layers[0].parameters())
    assert kept == model.model.embed_tokens.weight.numel() + 5 * one_layer
    assert not any(p.requires_grad for p in target.decoder.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_ends_are_the_models(family: str, tmp_path: Path) -> None:
    config = target_config(save_tiny(family, tmp_path))
    spec = describe_target(config)
    model, ends = tiny_model(family), frozen_ends(spec, config, "cpu")
    tokens = torch.arange(VOCAB)[None]
    with torch.no_grad():
        out = model.model if hasattr(model, "model") else model.gpt_neox
        first = out(tokens, output_hidden_states=True, use_cache=False)
        logits = model(tokens, use_cache=False).logits
    torch.testing.assert_close(ends.embed(tokens), first.hidden_states[0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(ends.logits(first.last_hidden_state), logits, atol=1e-5, rtol=1e-5)
    cast = frozen_ends(spec, target_config(tmp_path, dtype="float64"), "cpu")
    assert cast.embed_VH.dtype == torch.float64
    for made in (ends, cast, ends_of(model, spec, "cpu")):
        assert (made.embed_VH is made.head_VH) == bool(model.config.tie_word_embeddings)


def test_a_lost_weight_stops_the_load(tmp_path: Path) -> None:
    config = target_config(save_tiny("qwen3", tmp_path))
    weights = load_file(tmp_path / "model.safetensors")
    spec = describe_target(config)
    for lost in ("lm_head.weight", "model.layers.2.self_attn.q_proj.weight"):
        save_file({k: v for k, v in weights.items() if k != lost}, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(ConfigError, match=rf"target\.path: .*{lost}"):
            load_feature_target(spec, config, "cpu")
    save_file(
        {k: v for k, v in weights.items() if k != "lm_head.weight"}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(ConfigError, match=r"target\.path: .*lm_head"):
        frozen_ends(spec, config, "cpu")


def test_a_torn_file_stops_the_load(tmp_path: Path) -> None:
    config = target_config(save_tiny("qwen3", tmp_path))
    spec = describe_target(config)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r"target\.path: .*cannot be loaded"):
        load_feature_target(spec, config, "cpu")
