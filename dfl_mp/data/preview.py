"""Shows a document as the drafter will be trained on it: what is trained stands in ⟦ ⟧, an anchor behind ▸."""

from __future__ import annotations

from typing import Any

import numpy as np

from dfl_mp.data.packs import PackStore


def preview(store: PackStore, tokenizer: Any, n: int, document: int = 0) -> str:
    """The text of a document (by its index in the first row) of pack n.

    <|im_start|>assistant\\n⟦▸It▸ is seven.<|im_end|>⟧\\n
    """
    pack = store[n]
    positions = np.flatnonzero(pack.document_RS[0] == document)
    if not len(positions):
        raise IndexError(f"document {document}: the first row of pack {n} has {int(pack.document_RS[0].max()) + 1}")
    anchors = set(pack.anchor_RN[0].tolist())
    parts, inside = [], False
    for at in positions.tolist():
        trained = bool(pack.loss_mask_RS[0, at])
        if trained != inside:
            parts.append("⟦" if trained else "⟧")
            inside = trained
        if at in anchors:
            parts.append("▸")
        parts.append(tokenizer.decode([int(pack.tokens_RS[0, at])]))
    return "".join(parts) + ("⟧" if inside else "")
