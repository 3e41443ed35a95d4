"""Features on CUDA: kernels that know documents, compiled layers and float8, against float32 with dense masks."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dfl_mp.model.target import FeatureTarget, load_feature_target
from dfl_mp.model.target_compile import compile_target
from dfl_mp.model.target_proof import median_error
from dfl_mp.model.target_spec import describe_target
from tests.unit.test_target_features import pack
from tests.unit.tiny_targets import save_tiny, target_config

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "initializer_range": 0.05,
    "max_position_embeddings": 1024,
}
FAMILIES = {"qwen3": SHAPE, "gemma3": {**SHAPE, "sliding_window": 70, "query_pre_attn_scalar": 64}}
ROWS = [[130, 1, 99, 60], [300]]
OTHERS = [[20, 20, 250], [7, 293]]
NOISE = 4e-2
"""Of bfloat16 after five layers, relative; a CPU has 0.014."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    return cache(lambda family: save_tiny(family, tmp_path_factory.mktemp(family), **FAMILIES[family]))


def load(folder: Path, **fields: object) -> FeatureTarget:
    config = target_config(folder, **{"layer_ids": (0, 2, 4), "dtype": "bfloat16", **fields})
    return load_feature_target(describe_target(config), config, "cuda")


def exact(folder: Path, rows: list[list[int]]) -> Tensor:
    return load(folder, dtype="float32", attention="sdpa").features(*pack(rows, 0))


def valid(rows: list[list[int]]) -> Tensor:
    return (pack(rows, 0)[2] >= 0).cuda()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", ["varlen", "flex"])
def test_kernels_follow_float32_and_keep_documents_apart(folder, family: str, way: str) -> None:
    target = load(folder(family), attention=way)
    assert target.way == way
    tokens_BS, position_BS, document_BS = pack(ROWS, 0)
    found = target.features(tokens_BS, position_BS, document_BS)
    assert median_error(found[valid(ROWS)], exact(folder(family), ROWS)[valid(ROWS)]) < NOISE
    other = document_BS != 2
    changed = torch.where(other & (document_BS >= 0), (tokens_BS + 1) % 61, tokens_BS)
    again = target.features(changed, position_BS, document_BS)
    assert torch.equal(again[~other.cuda()], found[~other.cuda()])
    assert not torch.equal(again, found)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", ["varlen", "flex", "sdpa"])
def test_compiled_layers_follow_float32_without_recompiling_for_other_documents(folder, family: str, way: str) -> None:
    torch._dynamo.reset()
    target = load(folder(family), attention=way)
    assert compile_target(target, 2, 300) is None
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (ROWS, OTHERS):
            found = target.features(*pack(rows, 0))
            assert median_error(found[valid(rows)], exact(folder(family), rows)[valid(rows)]) < NOISE


@pytest.mark.parametrize("compiled", [False, True])
def test_a_forward_is_enqueued_without_a_host_wait(folder, compiled: bool) -> None:
    torch._dynamo.reset()
    target = load(folder("qwen3"), attention="varlen")
    if compiled:
        assert compile_target(target, 2, 300) is None
    inputs = tuple(x.pin_memory() for x in pack(ROWS, 0))
    out = target.features(*inputs)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        target.features(*inputs, out=out)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_float8_is_near_bfloat16(folder) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs compute capability 8.9")
    torch._dynamo.reset()
    wanted = exact(folder("qwen3"), ROWS)[valid(ROWS)]
    target = load(folder("qwen3"), float8=True)
    eager = target.features(*pack(ROWS, 0))[valid(ROWS)]
    assert NOISE < median_error(eager, wanted) < 0.3
    assert compile_target(target, 2, 300) is None
    assert median_error(target.features(*pack(ROWS, 0))[valid(ROWS)], eager) < 2.5 * NOISE


def test_auto_uses_varlen_in_bfloat16_and_says_why_not_in_float32(folder) -> None:
    assert load(folder("qwen3")).way == "varlen"
    target = load(folder("qwen3"), dtype="float32")
    assert target.way == "masks" and "computes in bfloat16" in target.notes[0]
