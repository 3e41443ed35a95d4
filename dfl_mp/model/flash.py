"""Block-sparse attention by FlashAttention-4 (`flash-attn-4`, optional), the fastest on Hopper.

Two custom operators, so that a compiled caller takes them whole; the mask's spans and tile lists are plain tensors.
Legend of shape suffixes: `shapes.py`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dfl_mp import needs


class FlashMask(NamedTuple):
    """What each query sees, and which 128×128 tiles hold some of it, for queries and, transposed, for keys."""

    spans_BM4: Tensor
    """int32: [low, high) of context and [own, end) of the block, as key indices."""
    tiles: list[Tensor]
    """Of partial and of full tiles, per query tile and then per key tile: how many, and which first; int32."""


def flash_reason(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why FlashAttention-4 cannot be used, or None."""
    reason = needs.flash_reason(needs.describe(device), str(dtype).removeprefix("torch."), head_dim)
    if reason is not None:
        return reason
    if importlib.util.find_spec("flash_attn.cute") is None:
        return needs.WITHOUT_FLASH_ATTN
    try:
        load_library()
    except Exception as failure:  # of the library's compiler, too
        return f"flash-attn-4 cannot be loaded: {type(failure).__name__}: {failure}"
    return None


def flash_attention(q_BAMD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, mask: FlashMask, scale: float) -> Tensor:
    """Grouped-query attention → [B, A, M, D]. Every query must see a key."""
    q, k, v = (x.transpose(1, 2) for x in (q_BAMD, k_BGTD, v_BGTD))
    out_BMAD, _ = flash_forward(q, k, v, mask.spans_BM4, mask.tiles, scale)
    return out_BMAD.transpose(1, 2)


_waits: list[Callable[[], None]] = []


def before_first_use(wait: Callable[[], None]) -> None:
    """Call it before the library's kernels are next used, and compiled if need be."""
    _waits.append(wait)


@cache
def load_library() -> Any:
    """The library's functions and the mask in its kernel language; compiled at their first call."""
    from cutlass import Int32, cute
    from flash_attn.cute import utils
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch
    from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd

    @cute.jit
    def seen(batch, head, query, key, seqlen_info, aux_tensors):  # type: ignore[no-untyped-def]
        spans = aux_tensors[0]
        low = utils.scalar_to_ssa(spans[batch[0], query[0], 0], Int32)
        high = utils.scalar_to_ssa(spans[batch[0], query[0], 1], Int32)
        own = utils.scalar_to_ssa(spans[batch[0], query[0], 2], Int32)
        end = utils.scalar_to_ssa(spans[batch[0], query[0], 3], Int32)
        return ((key >= low) & (key < high)) | ((key >= own) & (key < end))

    def arguments(spans: Tensor, tiles: list[Tensor], scale: float) -> dict[str, Any]:
        sparse = BlockSparseTensorsTorch(*tiles, block_size=(128, 128))
        return {"softmax_scale": scale, "mask_mod": seen, "aux_tensors": [spans], "block_sparse_tensors": sparse}

    return _flash_attn_fwd, _flash_attn_bwd, arguments


@torch.library.custom_op("dfl_mp::flash_forward", mutates_args=())
def flash_forward(
    q_BMAD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor, spans_BM4: Tensor, tiles: list[Tensor], scale: float
) -> tuple[Tensor, Tensor]:
    """Attention [B, M, A, D] and the log of each query's normalizer [B, A, M], float32."""
    while _waits:
        _waits.pop()()
    forward, _, arguments = load_library()
    out, lse, *_ = forward(q_BMAD, k_BTGD, v_BTGD, return_lse=True, **arguments(spans_BM4, tiles[:4], scale))
    return out, lse


@flash_forward.register_fake
def _(
    q_BMAD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor, spans_BM4: Tensor, tiles: list[Tensor], scale: float
) -> tuple[Tensor, Tensor]:
    B, M, A, _ = q_BMAD.shape
    return q_BMAD.new_empty(q_BMAD.shape), q_BMAD.new_empty(B, A, M, dtype=torch.float32)


@torch.library.custom_op("dfl_mp::flash_backward", mutates_args=())
def flash_backward(
    dout_BMAD: Tensor, saved: list[Tensor], spans_BM4: Tensor, tiles: list[Tensor], scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v. `saved` = [q, k, v, out, lse]."""
    _, backward, arguments = load_library()
    q, k, v, out, lse = saved
    dq, dk, dv = backward(q, k, v, out, dout_BMAD, lse, **arguments(spans_BM4, tiles[4:], scale))
    return dq, dk, dv


@flash_backward.register_fake
def _(
    dout_BMAD: Tensor, saved: list[Tensor], spans_BM4: Tensor, tiles: list[Tensor], scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.empty_like(x) for x in saved[:3])
    return q, k, v


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, spans_BM4, tiles, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output, spans_BM4, *tiles)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, dout_BMAD: Tensor, _: Tensor) -> tuple[Any, ...]:
    *saved, spans_BM4 = ctx.saved_tensors[:6]
    tiles = list(ctx.saved_tensors[6:])
    dq, dk, dv = flash_backward(dout_BMAD.contiguous(), saved, spans_BM4, tiles, ctx.scale)
    return dq, dk, dv, None, [None] * len(tiles), None


flash_forward.register_autograd(_gradients, setup_context=_save)
