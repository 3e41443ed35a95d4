"""Compiling a feature target's decoder layers: one shape, one graph for all layers of a kind.

The hooks that copy features run outside of the compiled layers. Legend: `target.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from dfl_mp.model.hub import reason
from dfl_mp.model.target_proof import made_up_pack, median_error

if TYPE_CHECKING:
    from dfl_mp.model.target import FeatureTarget


def compile_target(target: FeatureTarget, rows: int, tokens: int, backend: str = "inductor") -> str | None:
    """Compile the layers for packs of this shape and prove them on one; why they stay as they were, or None."""
    if not target.packed:
        return "documents run one by one, in many shapes"
    quarter = tokens // 4
    lengths = (quarter, 2 * quarter, tokens - 3 * quarter - quarter // 2, quarter // 2)
    pack = made_up_pack(rows, lengths, target.spec.vocab_size)
    expected = target.features(*pack)
    compile_layers(target.layers, backend)
    try:
        error = median_error(target.features(*pack), expected)
    except Exception as failure:  # a compiler raises anything
        undo(target.layers)
        return f"{type(failure).__name__}: {reason(failure)}"
    if error < 2 * target.tolerance:  # every layer rounds elsewhere
        return None
    undo(target.layers)
    return f"compiled layers are off by {error:.1e}"


def compile_layers(layers: nn.ModuleList, backend: str = "inductor") -> None:
    """From now on each layer's forward is compiled as a whole, at its next call, for the shape of that call."""
    for layer in layers:
        for part in layer.modules():
            if part is not layer:
                # transformers' recording hooks read a context variable, which cannot be traced.
                part._forward_hooks.clear()
        layer.forward = torch.compile(layer.forward, backend=backend, dynamic=False, fullgraph=True)


def undo(layers: nn.ModuleList) -> None:
    """Back to the layers' own forward."""
    for layer in layers:
        layer.__dict__.pop("forward", None)
