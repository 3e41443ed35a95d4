"""Attention of a frozen target over packed rows, document by document: no mask in memory, no work between documents.

Registered with transformers under the name `ATTENTION`. It is one operator that the compiler does not look into; the
documents of the pack are those given to `within`, so that neither their number nor their lengths recompile a layer.
Inference only. Legend: B rows · S tokens in a row · T = B·S tokens · D documents · A query heads · G key/value heads ·
C head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:
    varlen_attn = None

ATTENTION = "dfl_documents"
KERNELS = ("varlen", "flex")
UNKNOWN = ("softcap", "s_aux", "position_bias", "alibi", "cache")
"""Arguments that change attention and that no kernel here takes."""
TILE = 128


class Unsupported(Exception):
    """The target asks for something that these kernels do not do; the text says what."""


class Documents:
    """Where the documents of a pack begin, as the kernel named `kernel` wants it; made on the host, without a wait.

    Padding (−1) counts as a document of its own: its output is finite.
    """

    def __init__(self, document_BS: Tensor, device: torch.device, kernel: str) -> None:
        self.kernel, self.shape = kernel, tuple(document_BS.shape)
        self.windows: list[int] = []
        """What each call was asked for: keys seen at most, itself among them; 0: all."""
        host_BS = document_BS.cpu()
        begins_BS = torch.ones_like(host_BS, dtype=torch.bool)
        begins_BS[:, 1:] = host_BS[:, 1:] != host_BS[:, :-1]
        if kernel == "varlen":
            bounds = torch.cat((begins_BS.flatten().nonzero()[:, 0], torch.tensor([host_BS.numel()])))
            self.longest = int(bounds.diff().max())
            self.bounds_D = _to(bounds.to(torch.int32), device)
        else:
            column_S = torch.arange(host_BS.shape[1])
            start_BS = torch.where(begins_BS, column_S, 0).cummax(dim=1).values
            self.start_BS = _to(start_BS.to(torch.int32), device)
            self.masks: dict[int, BlockMask] = {}

    def attend(self, q_TAC: Tensor, k_TGC: Tensor, v_TGC: Tensor, scale: float, window: int) -> Tensor:
        """Causal attention inside each document → [T, A, C]."""
        self.windows.append(window)
        if self.kernel == "varlen":
            return self._varlen(q_TAC, k_TGC, v_TGC, scale, window)
        return self._flex(q_TAC, k_TGC, v_TGC, scale, window)

    def _varlen(self, q_TAC: Tensor, k_TGC: Tensor, v_TGC: Tensor, scale: float, window: int) -> Tensor:
        options: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in VARLEN_OPTIONS else {}
        longest, bounds = self.longest, self.bounds_D
        sides = (window - 1 if window else -1, 0)
        return varlen_attn(
            q_TAC, k_TGC, v_TGC, bounds, bounds, longest, longest, scale=scale, window_size=sides, **options
        )

    def _flex(self, q_TAC: Tensor, k_TGC: Tensor, v_TGC: Tensor, scale: float, window: int) -> Tensor:
        if window not in self.masks:
            self.masks[window] = block_mask(self.start_BS, window)
        mask = self.masks[window]
        q, k, v = (x.unflatten(0, self.shape).transpose(1, 2) for x in (q_TAC, k_TGC, v_TGC))
        options: dict[str, Any] = {"scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
        if q.is_cuda:
            out_BASC = _compiled_flex(q, k, v, block_mask=mask, **options)
        else:  # flex_attention is not compiled here, and would do the same in more steps
            seen_B1SS = dense_mask(mask, *self.shape)
            out_BASC = F.scaled_dot_product_attention(q, k, v, attn_mask=seen_B1SS, **options)
        return out_BASC.transpose(1, 2).flatten(0, 1).contiguous()


VARLEN_OPTIONS = frozenset() if varlen_attn is None else frozenset(inspect.signature(varlen_attn).parameters)
_compiled_flex = torch.compile(flex_attention, dynamic=False)
_documents: Documents | None = None


@contextmanager
def within(now: Documents) -> Iterator[Documents]:
    """The documents of the forward inside."""
    global _documents
    _documents = now
    try:
        yield now
    finally:
        _documents = None


def missing(kernel: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why a kernel cannot run here at all; None if it can."""
    if kernel == "flex":
        return None
    if device.type != "cuda":
        return "varlen needs a CUDA device"
    if "window_size" not in VARLEN_OPTIONS:
        return f"torch {torch.__version__} has no varlen_attn with windows"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"varlen computes in bfloat16, the target in {str(dtype).removeprefix('torch.')}"
    return None


def block_mask(start_BS: Tensor, window: int) -> BlockMask:
    """Query q sees key k if start[q] <= k <= q, and q − k < window; tiles of 128×128, S need not be a multiple.

    Documents lie in one piece, so `low`, the first key seen, does not fall along a row. A tile is needed when it lies
    between its first query's `low` and its last query; full when its last query's `low` is before it and it is left of
    the diagonal.
    """
    S = start_BS.shape[1]
    column_S = torch.arange(S, device=start_BS.device, dtype=torch.int32)
    low_BS = torch.maximum(start_BS, column_S - window + 1) if window else start_BS
    first_Q = torch.arange(0, S, TILE, device=start_BS.device)
    last_Q = (first_Q + TILE - 1).clamp_max(S - 1)
    low_BQ, high_BQ = low_BS[:, first_Q], low_BS[:, last_Q]
    reached = (last_Q >= low_BQ[..., None]) & (first_Q <= last_Q[:, None])
    whole_Q = first_Q + TILE <= S
    full = (first_Q >= high_BQ[..., None]) & (first_Q < first_Q[:, None]) & whole_Q[:, None]

    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (k >= low_BS[b, q])

    # Both directions are given, since `from_kv_blocks` derives one by vmap, which fails inside of an operator.
    partial = reached & ~full
    parts = (*_ordered(partial), *_ordered(full), *_ordered(partial.mT), *_ordered(full.mT))
    return BlockMask((S, S), *parts, BLOCK_SIZE=(TILE, TILE), mask_mod=seen)


def dense_mask(mask: BlockMask, B: int, S: int) -> Tensor:
    """bool [B, 1, S, S], true = seen."""
    device = mask.kv_indices.device
    b, q, k = (torch.arange(n, device=device) for n in (B, S, S))
    return mask.mask_mod(b[:, None, None], b.new_zeros(()), q[:, None], k)[:, None]


def _ordered(tiles_BQK: Tensor) -> tuple[Tensor, Tensor]:
    """bool → how many are set in each row, and their column indices first, ascending; int32 with a head axis."""
    order = tiles_BQK.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return tiles_BQK.sum(-1, dtype=torch.int32)[:, None], order.to(torch.int32)[:, None].contiguous()


def _to(x: Tensor, device: torch.device) -> Tensor:
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x


@torch.library.custom_op("dfl_mp::attend_documents", mutates_args=())
def _attend(q_TAC: Tensor, k_TGC: Tensor, v_TGC: Tensor, scale: float, window: int) -> Tensor:
    assert _documents is not None, "a forward outside `within`"
    return _documents.attend(q_TAC, k_TGC, v_TGC, scale, window)


@_attend.register_fake
def _(q_TAC: Tensor, k_TGC: Tensor, v_TGC: Tensor, scale: float, window: int) -> Tensor:
    return torch.empty_like(q_TAC, memory_format=torch.contiguous_format)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [B, A, S, C], key and value [B, G, S, C] → [B, S, A, C]."""
    for name in UNKNOWN:
        if options.get(name) is not None:
            raise Unsupported(f"its attention has {name}")
    if attention_mask is not None:
        raise Unsupported("its attention has a mask of its own")
    if not getattr(module, "is_causal", True) or options.get("is_causal") is False:
        raise Unsupported("its attention is not causal")
    scale = options.get("scaling")
    q, k, v = (x.transpose(1, 2).flatten(0, 1).contiguous() for x in (query, key, value))
    out = _attend(q, k, v, query.shape[-1] ** -0.5 if scale is None else scale, options.get("sliding_window") or 0)
    return out.unflatten(0, (query.shape[0], query.shape[2])), None


AttentionInterface.register(ATTENTION, _attention)
