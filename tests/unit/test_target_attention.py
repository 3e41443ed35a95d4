"""Attention document by document: the same features as the target's own masks, whatever is packed together."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

from dfl_mp.errors import ConfigError
from dfl_mp.model.target import FeatureTarget, load_feature_target
from dfl_mp.model.target_attention import block_mask, dense_mask
from dfl_mp.model.target_spec import describe_target
from tests.unit.test_target_features import direct, pack, rows_of_documents
from tests.unit.tiny_targets import save_tiny, target_config, tiny_model

torch.set_num_threads(1)
KNOWN = ("qwen3", "llama", "qwen3_moe", "gemma3", "gpt_neox", "opt")


def load(family: str, folder: Path, **fields: object) -> FeatureTarget:
    config = target_config(save_tiny(family, folder), layer_ids=(0, 2, 4), **fields)
    return load_feature_target(describe_target(config), config, "cpu")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory):
    return cache(lambda family: load(family, tmp_path_factory.mktemp(family), attention="flex"))


@pytest.mark.parametrize("family", KNOWN)
@settings(max_examples=5, deadline=None)
@given(rows=rows_of_documents)
def test_features_are_those_of_each_document_alone(loaded, family: str, rows: list[list[int]]) -> None:
    target, model = loaded(family), tiny_model(family)
    assert target.way == "flex"
    tokens_BS, position_BS, document_BS = pack(rows, 0)
    found = target.features(tokens_BS, position_BS, document_BS)
    assert found.isfinite().all()
    for row, lengths in enumerate(rows):
        for document in range(len(lengths)):
            mine = document_BS[row] == document
            torch.testing.assert_close(found[row, mine], direct(model, tokens_BS[row, mine]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "attention", "why"),
    [
        ("qwen3", "varlen", "varlen needs a CUDA device"),
        ("gemma2", "flex", "its attention has softcap"),
        ("qwen3_5", "flex", "it has layers of the kind linear_attention"),
    ],
)
def test_what_a_kernel_cannot_do_is_said(family: str, attention: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"target\.attention: {attention} does not work with .*: {why}"):
        load(family, tmp_path, attention=attention)


def test_a_window_that_the_config_has_but_a_layer_does_not_ask_for(tmp_path: Path) -> None:
    """Short proofs never leave a real window, so windows are compared by number."""
    config = target_config(save_tiny("llama", tmp_path, sliding_window=4000), attention="flex")
    with pytest.raises(ConfigError, match=r"windows of \[0, .*4000"):
        load_feature_target(describe_target(config), config, "cpu")


@pytest.mark.parametrize("window", [0, 1, 100, 200])
@pytest.mark.parametrize("tokens", [512, 700])
def test_tiles_hold_what_is_seen(window: int, tokens: int) -> None:
    """No tile that is left out has a pair that is seen; no full tile has one that is not."""
    start_BS = torch.zeros(3, tokens, dtype=torch.int32)
    for first in (5, 128, 300, 301):
        start_BS[0, first:] = first
    start_BS[1, 384:] = 384
    mask = block_mask(start_BS, window)
    index = torch.arange(tokens)
    expected = (index <= index[:, None]) & (index >= start_BS[..., None])
    if window:
        expected &= index[:, None] - index < window
    assert torch.equal(dense_mask(mask, 3, tokens)[:, 0], expected)
    tiles = -(-tokens // 128)
    padded = torch.nn.functional.pad(expected, (0, tiles * 128 - tokens) * 2)
    seen = padded.unflatten(1, (tiles, 128)).unflatten(3, (tiles, 128)).sum((2, 4))
    for b in range(3):
        for q in range(tiles):
            partial = set(mask.kv_indices[b, 0, q, : mask.kv_num_blocks[b, 0, q]].tolist())
            full = set(mask.full_kv_indices[b, 0, q, : mask.full_kv_num_blocks[b, 0, q]].tolist())
            assert not partial & full
            assert partial | full == {k for k in range(tiles) if seen[b, q, k] > 0}
            assert all(seen[b, q, k] == 128 * 128 for k in full)
    assert window or (mask.full_kv_num_blocks > 0).any()
