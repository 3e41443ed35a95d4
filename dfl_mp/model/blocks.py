"""From a pack's anchors to the drafter's blocks: inputs, positions, labels and loss weights.

Legend of shape suffixes: `shapes.py`. Everything is a few vectorised operations without a host wait.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_mp.model.shapes import Blocks, PackTensors

_GAMMAS = ((8, 4.0), (10, 5.0), (16, 7.0))


def default_gamma(block_size: int) -> float:
    """γ of the loss weights: 4, 5, 7 for K = 8, 10, 16 (arXiv 2602.06036), linear between and beyond, at least 1."""
    (k0, g0), (k1, g1) = _GAMMAS[:2] if block_size <= 10 else _GAMMAS[1:]
    return max(1.0, g0 + (g1 - g0) * (block_size - k0) / (k1 - k0))


def make_blocks(pack: PackTensors, block_size: int, mask_token_id: int, gamma: float) -> Blocks:
    """Blocks of all anchors of a pack; a block that runs past its document or the row keeps its first slots.

    With K = 4, an anchor at row index 5 whose document ends at index 7 gives labels t6, t7 and weights
    0, 1, exp(−1/γ), 0.
    """
    B, N = pack.anchor_BN.shape
    S = pack.tokens_BS.shape[1]
    slot_K = torch.arange(block_size, device=pack.anchor_BN.device)
    anchor_BN = pack.anchor_BN.clamp(min=0)
    index_BNK = anchor_BN[..., None] + slot_K
    inside_BNK = index_BNK < S
    index_BM = index_BNK.clamp(max=S - 1).view(B, N * block_size)

    def at_slots(x_BS: Tensor) -> Tensor:
        return x_BS.gather(1, index_BM).view(B, N, block_size)

    tokens_BNK, document_BNK = at_slots(pack.tokens_BS), at_slots(pack.document_BS)
    document_BN = document_BNK[..., 0]
    live_BN = (pack.anchor_BN >= 0) & (document_BN >= 0)
    trained_BNK = at_slots(pack.loss_mask_BS) & inside_BNK & (document_BNK == document_BN[..., None])
    trained_BNK[..., 0] = live_BN
    valid_BNK = trained_BNK.to(torch.int32).cumprod(-1).bool()
    valid_BNK[..., 0] = False
    decay_K = torch.exp(-(slot_K - 1).to(torch.float64) / gamma)
    return Blocks(
        ids_BNK=torch.where((slot_K == 0) & live_BN[..., None], tokens_BNK, mask_token_id),
        positions_BNK=pack.position_BS.gather(1, anchor_BN)[..., None] + slot_K,
        labels_BNK=tokens_BNK * valid_BNK,
        weight_BNK=valid_BNK * decay_K,
        valid_BNK=valid_BNK,
        live_BN=live_BN,
        num_documents=_count_documents(torch.where(live_BN, document_BN, -1)),
    )


def _count_documents(document_BN: Tensor) -> Tensor:
    """Anchors ascend, so along a row's anchors (−1: none) each document begins once."""
    begins_BN = document_BN >= 0
    begins_BN[:, 1:] &= document_BN[:, 1:] != document_BN[:, :-1]
    return begins_BN.sum()
