"""The records that the maths passes around, and the legend of its shape suffixes.

B rows · S tokens in a row · N anchor slots in a row · K block size · M = N·K block tokens · H hidden size ·
F features of one token (target layers used × H) · V vocabulary · R = B·N blocks · J = K − 1 labelled slots ·
A attention heads · G key/value heads · D head size · T keys of context.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from dfl_mp.model.flash import FlashMask


@dataclass(frozen=True)
class PackTensors:
    """One pack of the data: B rows of S tokens, each row holding whole documents one after the other.

    `document_BS` numbers the documents of a row and is −1 on padding, `position_BS` counts inside the document,
    `anchor_BN` holds row indices in ascending order, −1 where the slot is empty (after the others).
    """

    tokens_BS: Tensor
    document_BS: Tensor
    position_BS: Tensor
    loss_mask_BS: Tensor
    anchor_BN: Tensor

    def to(self, device: torch.device | str) -> PackTensors:
        return PackTensors(*(getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)))


@dataclass(frozen=True)
class FrozenEnds:
    """The target's embedding and head, which the drafter borrows and never trains."""

    embed_VH: Tensor
    head_VH: Tensor
    embedding_scale: float = 1.0
    logit_multiplier: float = 1.0
    final_logit_softcapping: float | None = None

    def to(self, dtype: torch.dtype, device: torch.device | str) -> FrozenEnds:
        """The same in another dtype; tensors that already fit, or are one tensor, stay shared."""
        embed = self.embed_VH.detach().to(device, dtype)
        head = embed if self.head_VH is self.embed_VH else self.head_VH.detach().to(device, dtype)
        return FrozenEnds(embed, head, self.embedding_scale, self.logit_multiplier, self.final_logit_softcapping)

    def embed(self, ids: Tensor) -> Tensor:
        """[...] token ids → [..., H], scaled as in the target."""
        x = F.embedding(ids, self.embed_VH)
        return x if self.embedding_scale == 1.0 else x * self.embedding_scale

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] → [..., V] in float32 (float64 stays), multiplied and capped as in the target."""
        z = hidden @ self.head_VH.T
        z = z if z.dtype == torch.float64 else z.float()
        z = z * self.logit_multiplier
        cap = self.final_logit_softcapping
        return z if cap is None else cap * torch.tanh(z / cap)


class Blocks(NamedTuple):
    """The drafter's inputs and labels for the N blocks of each row. Slot 0 is the anchor and is never a label."""

    ids_BNK: Tensor
    """The token at the anchor, then MASK."""
    positions_BNK: Tensor
    """Document-local: position of the anchor + slot."""
    labels_BNK: Tensor
    """The data's token at anchor + slot; 0 where `valid_BNK` is false."""
    weight_BNK: Tensor
    """float64: valid · exp(−(slot − 1)/γ)."""
    valid_BNK: Tensor
    """bool: every label from slot 1 up to this one is trained and inside the document; false in slot 0."""
    live_BN: Tensor
    """bool: the slot holds an anchor."""
    num_documents: Tensor
    """Scalar: documents that have at least one anchor."""


class Masks(NamedTuple):
    """Who sees whom, for both kinds of layer; a kind that no layer uses is None."""

    live_BM: Tensor
    """bool: the block token belongs to a block with an anchor; the others stay exactly zero."""
    full: Tensor | BlockMask | FlashMask | None
    sliding: Tensor | BlockMask | FlashMask | None


class LossSums(NamedTuple):
    """Sums of one pack, all scalars on its device. Dividing is left to the optimizer step, which sums over packs."""

    loss: Tensor
    """Σ w·CE; the only one with a gradient."""
    denominator: Tensor
    """Σ w, or the number of documents under D-PACE."""
    anchors: Tensor
    """Blocks with at least one label."""
    accepted: Tensor
    """Σ over those blocks of the agreeing prefix + 1, teacher-forced."""
    labels: Tensor
    """Labels trained."""
