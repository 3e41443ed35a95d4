"""From a pack's arrays to tensors on the device."""

from __future__ import annotations

import torch

from dfl_mp.data.packs import Pack
from dfl_mp.model.shapes import PackTensors


def to_tensors(pack: Pack, device: torch.device) -> PackTensors:
    """int64 and bool tensors [rows, S] and [rows, N]; on a GPU they are copied without a host wait."""
    arrays = (pack.tokens_RS, pack.document_RS, pack.position_RS, pack.loss_mask_RS, pack.anchor_RN)
    tensors = [torch.from_numpy(a) for a in arrays]
    host = [t if t.dtype == torch.bool else t.long() for t in tensors]
    if device.type == "cuda":
        return PackTensors(*(t.pin_memory().to(device, non_blocking=True) for t in host))
    return PackTensors(*host).to(device)
