from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from dfl_mp.model.attention import attend
from dfl_mp.model.mask import TILE, Sliding, block_mask, dense_mask, sliding_of
from dfl_mp.model.reference import visible
from dfl_mp.model.shapes import PackTensors
from dfl_mp.specs import DrafterSpec
from tests.unit.model_cases import make_pack, one_row, packs, specs

# Neither S nor M a multiple of the tile; both; tiles filled by one document.
SHAPES = [(200, 40, 5), (256, 64, 4), (520, 24, 16), (64, 3, 4)]
KINDS = [None, Sliding(40, True), Sliding(9, False), Sliding(300, True)]


@given(packs, specs)
@settings(deadline=None, max_examples=40)
def test_dense_mask_by_definition(pack: PackTensors, spec: DrafterSpec) -> None:
    for kind in set(spec.layer_types):
        sliding = sliding_of(spec) if kind == "sliding_attention" else None
        mask = dense_mask(pack, spec.block_size, sliding)
        for row in range(pack.tokens_BS.shape[0]):
            assert mask[row, 0].tolist() == visible(pack, row, spec, kind)


@pytest.mark.parametrize("sliding", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_block_mask_is_the_dense_mask(shape: tuple[int, int, int], sliding: Sliding | None) -> None:
    S, N, K = shape
    pack = one_row([S - 30], [*range(S - 30 - N, S - 31), -1], S) if S == 520 else make_pack(7, 2, S, N)
    dense = dense_mask(pack, K, sliding)
    sparse = block_mask(pack, K, sliding)
    assert sparse.shape == dense.shape
    assert torch.equal(_elements(sparse), dense)
    some, full = _tile_sets(dense)
    assert torch.equal(_tiles(sparse.kv_num_blocks, sparse.kv_indices), some & ~full)
    assert torch.equal(_tiles(sparse.full_kv_num_blocks, sparse.full_kv_indices), full)
    assert torch.equal(_tiles(sparse.q_num_blocks, sparse.q_indices).mT, some & ~full)
    assert torch.equal(_tiles(sparse.full_q_num_blocks, sparse.full_q_indices).mT, full)
    assert bool(full.any()) == (S == 520 and sliding in (None, Sliding(300, True)))


@pytest.mark.parametrize("shape", SHAPES)
def test_block_mask_has_the_layout_of_torch(shape: tuple[int, int, int]) -> None:
    S, N, K = shape
    pack = make_pack(3, 2, S, N)
    ours = block_mask(pack, K, None)
    theirs = create_block_mask(ours.mask_mod, 2, None, N * K, S + N * K, device="cpu")
    assert ours.to_dense().shape == theirs.to_dense().shape
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    for name in ("kv_indices", "full_kv_indices", "q_indices", "full_q_indices"):
        a, b = getattr(ours, name), getattr(theirs, name)
        assert (a.shape, a.dtype, a.is_contiguous()) == (b.shape, b.dtype, b.is_contiguous())


def test_a_tile_is_full_only_to_the_last_key() -> None:
    """128 queries whose anchors sit at 127 or 128: the first key tile lacks its last key, or nothing."""
    for anchor, full in ((127, 0), (128, 1)):
        mask = block_mask(one_row([256], [anchor] * 8, 256), 16, None)
        assert mask.full_kv_num_blocks is not None and mask.full_kv_num_blocks.tolist() == [[[full]]]
        assert mask.kv_num_blocks.tolist() == [[[2 - full]]]


def test_no_context_crosses_a_document_or_reaches_the_anchor() -> None:
    pack = one_row([6, 10], [3, 9, -1], row_tokens=20)
    mask = dense_mask(pack, 4, None)[0, 0, :, :20]
    assert mask[0].nonzero().flatten().tolist() == [0, 1, 2]
    assert mask[4].nonzero().flatten().tolist() == [6, 7, 8]
    assert not mask[8:].any()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("sliding", [None, Sliding(9, True)])
def test_flex_and_dense_attend_alike(sliding: Sliding | None) -> None:
    pack = make_pack(5, 2, 60, 9)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, n, 8) for heads, n in ((4, 36), (2, 96), (2, 96)))
    with torch.no_grad():
        dense = attend(q, k, v, dense_mask(pack, 4, sliding))
        flex = attend(q, k, v, block_mask(pack, 4, sliding))
    empty = (pack.anchor_BN < 0).repeat_interleave(4, 1)
    assert empty.any()
    assert not dense.transpose(1, 2)[empty].any()
    torch.testing.assert_close(flex, dense)


def _elements(mask: BlockMask) -> Tensor:
    B, _, M, T = mask.shape
    b, q, k = (torch.arange(n) for n in (B, M, T))
    return mask.mask_mod(b[:, None, None], torch.tensor(0), q[:, None], k)[:, None]


def _tile_sets(dense: Tensor) -> tuple[Tensor, Tensor]:
    M, T = dense.shape[-2:]
    tiles = F.pad(dense, (0, -T % TILE, 0, -M % TILE)).unflatten(-1, (-1, TILE)).unflatten(-3, (-1, TILE))
    return tiles.any(-1).any(-2), tiles.all(-1).all(-2)


def _tiles(count: Tensor, index: Tensor) -> Tensor:
    keep = torch.arange(index.shape[-1]) < count[..., None]
    return torch.zeros_like(keep).scatter(-1, index.long(), keep)
