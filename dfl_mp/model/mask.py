"""Who sees whom, as a dense bool mask, as a block-sparse mask, and for one block on a cache.

Keys are [S context | M block], queries [M block]. A query of block b, slot j sees context t if t lies before the
anchor and in its document (a sliding layer: and a + j − t < window), and its own block (a sliding layer: up to
itself, unless not causal). Blocks without an anchor see nothing. Legend of shape suffixes: `shapes.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from dfl_mp.model.flash import FlashMask
from dfl_mp.model.shapes import Blocks, Masks, PackTensors
from dfl_mp.specs import DrafterSpec

TILE = 128


class Sliding(NamedTuple):
    window: int
    causal: bool


def sliding_of(spec: DrafterSpec) -> Sliding | None:
    return Sliding(spec.sliding_window, spec.is_causal) if spec.sliding_window is not None else None


def make_masks(pack: PackTensors, blocks: Blocks, spec: DrafterSpec, attention: str) -> Masks:
    """Both kinds of mask, of those that the layers use; `attention` is "dense", "flex" or "flash"."""
    build = {"dense": dense_mask, "flex": block_mask, "flash": flash_mask}[attention]
    kinds = set(spec.layer_types)
    K = spec.block_size
    return Masks(
        live_BM=blocks.live_BN.repeat_interleave(K, dim=1),
        full=build(pack, K, None) if "full_attention" in kinds else None,
        sliding=build(pack, K, sliding_of(spec)) if "sliding_attention" in kinds else None,
    )


def dense_mask(pack: PackTensors, block_size: int, sliding: Sliding | None) -> Tensor:
    """bool [B, 1, M, S + M], true = seen."""
    anchor_BN, document_BS = pack.anchor_BN, pack.document_BS
    S, device = document_BS.shape[1], document_BS.device
    live_BN = (anchor_BN >= 0) & (_at(document_BS, anchor_BN) >= 0)
    anchor_BM = torch.where(live_BN, anchor_BN, 0).repeat_interleave(block_size, dim=1)
    live_BM = live_BN.repeat_interleave(block_size, dim=1)
    t_S = torch.arange(S, device=device)
    m_M = torch.arange(anchor_BM.shape[1], device=device)
    same_BMS = _at(document_BS, anchor_BM)[..., None] == document_BS[:, None]
    context_BMS = same_BMS & (t_S < anchor_BM[..., None]) & live_BM[..., None]
    own_MM = (m_M // block_size)[:, None] == m_M // block_size
    if sliding is not None:
        query_BM = anchor_BM + m_M % block_size
        context_BMS &= query_BM[..., None] - t_S < sliding.window
        own_MM = own_MM & (m_M <= m_M[:, None]) if sliding.causal else own_MM
    return torch.cat((context_BMS, own_MM & live_BM[..., None]), dim=-1)[:, None]


class Spans(NamedTuple):
    """What each query sees, as two half-open spans of key indices: [low, high) of context, [own, end) of its block.

    int32 [B, M]; needs documents in one piece. Blocks without an anchor see nothing.
    """

    low: Tensor
    high: Tensor
    own: Tensor
    end: Tensor


def query_spans(pack: PackTensors, block_size: int, sliding: Sliding | None) -> Spans:
    anchor_BN, document_BS = pack.anchor_BN, pack.document_BS
    S, device = document_BS.shape[1], document_BS.device
    start_BN = _at(_document_starts(document_BS), anchor_BN)
    live_BN = (anchor_BN >= 0) & (_at(document_BS, anchor_BN) >= 0)
    live_BM, low_BM, high_BM = (
        x.repeat_interleave(block_size, dim=1) for x in (live_BN, start_BN, torch.maximum(anchor_BN, start_BN))
    )
    m_M = torch.arange(live_BM.shape[1], device=device)
    own_M = S + m_M // block_size * block_size
    end_M = own_M + block_size
    if sliding is not None:
        low_BM = torch.maximum(low_BM, high_BM + m_M % block_size - sliding.window + 1)
        end_M = S + m_M + 1 if sliding.causal else end_M
    spans = (low_BM, torch.maximum(high_BM, low_BM), own_M.expand_as(low_BM), end_M.expand_as(low_BM))
    return Spans(*((x * live_BM).to(torch.int32) for x in spans))


def flash_mask(pack: PackTensors, block_size: int, sliding: Sliding | None) -> FlashMask:
    """The same tiles for FlashAttention-4, which wants a key for every query: blocks without an anchor see themselves.

    Such a block is zero, keys and values as well, so it stays exactly zero.
    """
    S = pack.document_BS.shape[1]
    spans = query_spans(pack, block_size, sliding)
    M = spans.low.shape[1]
    begins_M = S + torch.arange(M, device=spans.low.device, dtype=torch.int32) // block_size * block_size
    dead_BM = spans.end == 0
    spans = spans._replace(
        own=torch.where(dead_BM, begins_M, spans.own), end=torch.where(dead_BM, begins_M + block_size, spans.end)
    )
    some, full = _tiles(spans, S + M)
    partial = some & ~full
    lists = [t for tiles in (partial, full, partial.mT, full.mT) for t in _ordered(tiles)]
    return FlashMask(torch.stack(tuple(spans), dim=-1), lists)


def block_mask(pack: PackTensors, block_size: int, sliding: Sliding | None) -> BlockMask:
    """The same mask as flex_attention's BlockMask of 128×128 tiles, without evaluating the mask element by element.

    Each query's two spans are measured against each key tile: a tile is needed when some query sees some of it, and
    full when all 128 queries see all of it. S and M need not be multiples of 128: the last tiles, which reach past
    the end, are then never full. Static shapes, no host wait.
    """
    S = pack.document_BS.shape[1]
    spans = query_spans(pack, block_size, sliding)
    M = spans.low.shape[1]
    some, full = _tiles(spans, S + M)
    partial = some & ~full

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        context = (k >= spans.low[b, q]) & (k < spans.high[b, q])
        return context | ((k >= spans.own[b, q]) & (k < spans.end[b, q]))

    kv, full_kv = _ordered(partial), _ordered(full)
    q, full_q = _ordered(partial.mT), _ordered(full.mT)
    return BlockMask((M, S + M), *kv, *full_kv, *q, *full_q, BLOCK_SIZE=(TILE, TILE), mask_mod=mask_mod)


def decode_mask(kind: str, spec: DrafterSpec, context_BT: Tensor, block_BK: Tensor) -> Tensor:
    """bool [B, 1, K, T + K] for one block on cached context, from document positions (context −1 = padding)."""
    B, K = block_BK.shape
    seen_BKT = ((context_BT >= 0) & (context_BT < block_BK[:, :1]))[:, None].expand(-1, K, -1)
    own_BKK = block_BK.new_ones((B, K, K), dtype=torch.bool)
    sliding = sliding_of(spec)
    if kind == "sliding_attention" and sliding is not None:
        seen_BKT = seen_BKT & (block_BK[..., None] - context_BT[:, None] < sliding.window)
        own_BKK = own_BKK & (block_BK[:, None] <= block_BK[..., None]) if sliding.causal else own_BKK
    return torch.cat((seen_BKT, own_BKK), dim=-1)[:, None]


def _at(x_BS: Tensor, index_BN: Tensor) -> Tensor:
    return x_BS.gather(1, index_BN.clamp(min=0))


def _document_starts(document_BS: Tensor) -> Tensor:
    """For each token the row index at which its document begins."""
    index_S = torch.arange(document_BS.shape[1], device=document_BS.device)
    begins_BS = torch.ones_like(document_BS, dtype=torch.bool)
    begins_BS[:, 1:] = document_BS[:, 1:] != document_BS[:, :-1]
    return torch.where(begins_BS, index_S, 0).cummax(dim=1).values


def _tiles(spans: Spans, keys: int) -> tuple[Tensor, Tensor]:
    """bool [B, 1, query tiles, key tiles]: some element is seen; all 128×128 elements exist and are seen."""
    low, high, own, end = (x[..., None] for x in spans)
    first_T = torch.arange(0, keys, TILE, device=low.device, dtype=torch.int32)
    last_T = first_T + TILE
    context = (torch.minimum(high, last_T) - torch.maximum(low, first_T)).clamp(min=0)
    block = (torch.minimum(end, last_T) - torch.maximum(own, first_T)).clamp(min=0)
    seen_BMT = context + block
    seen_BMT = torch.nn.functional.pad(seen_BMT, (0, 0, 0, -seen_BMT.shape[1] % TILE))
    tiles = seen_BMT.unflatten(1, (-1, TILE))
    return (tiles.amax(2) > 0)[:, None], (tiles.amin(2) == TILE)[:, None]


def _ordered(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """bool [..., rows, columns] → how many are set in each row, and their column indices first, ascending."""
    order = tiles.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return tiles.sum(-1, dtype=torch.int32), order.to(torch.int32, memory_format=torch.contiguous_format)
