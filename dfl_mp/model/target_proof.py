"""Proof, when a target is loaded, that its features of packed documents are its hidden states of each document alone.

Legend: `target.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_mp.model.hub import reason
from dfl_mp.model.target_attention import KERNELS, Unsupported, missing

if TYPE_CHECKING:
    from dfl_mp.model.target import FeatureTarget

MASKED_KINDS = {"full_attention", "sliding_attention", "chunked_attention"}
"""Layer types that only a mask connects; the others carry a state along the row, across documents."""
KERNEL_KINDS = {"full_attention", "sliding_attention"}
"""Those whose mask a kernel of `target_attention` knows."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 5e-2}
LENGTHS = (9, 1, 14, 5)
"""Of the documents of the row that proves; the last one stands for padding."""

PackInputs = tuple[Tensor, Tensor, Tensor]
"""tokens, positions, documents; [B, S] each, on the host."""


def made_up_pack(rows: int, lengths: tuple[int, ...], vocab_size: int) -> PackInputs:
    """Rows of random tokens, each of documents of these lengths and, as its last `lengths` says, padding."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.tensor([*range(len(lengths) - 1), -1])
    document_S = torch.repeat_interleave(numbers, torch.tensor(lengths))
    position_S = torch.cat([torch.arange(n) for n in lengths])
    tokens_BS = torch.randint(min(vocab_size, 1000), (rows, len(document_S)), generator=generator)
    return tokens_BS, position_S.expand(rows, -1).contiguous(), document_S.expand(rows, -1).contiguous()


@torch.no_grad()
def hidden_states_alone(target: FeatureTarget) -> list[Tensor]:
    """For each document of the proof's row the hidden states that the model reports for it alone, [length, F*H]."""
    tokens_1S, _, document_1S = (x.to(target.device) for x in made_up_pack(1, LENGTHS, target.spec.vocab_size))
    found = []
    for document in range(len(LENGTHS) - 1):
        ids = tokens_1S[:, document_1S[0] == document]
        states = target.decoder(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        found.append(torch.cat([states[i + 1] for i in target.spec.layer_ids], dim=-1)[0])
    return found


def why_not(target: FeatureTarget, way: str, expected: list[Tensor]) -> str | None:
    """Why documents cannot be kept apart in this way; when the answer is None, the target does so from now on."""
    config = target.decoder.config.get_text_config(decoder=True)
    kinds = list(getattr(config, "layer_types", None) or ())
    strange = set(kinds) - (KERNEL_KINDS if way in KERNELS else MASKED_KINDS)
    if strange and way != "alone":
        return f"it has layers of the kind {min(strange)}"
    if way in KERNELS and (lacking := missing(way, target.device, target.dtype)):
        return lacking
    target.use(way)
    tokens_1S, position_1S, document_1S = made_up_pack(1, LENGTHS, target.spec.vocab_size)
    try:
        found = target.features(tokens_1S, position_1S, document_1S)[0]
    except (Unsupported, RuntimeError, ValueError, TypeError) as error:
        if way not in KERNELS:
            raise
        return reason(error)
    if way in KERNELS and target.windows != (wanted := _windows(config, kinds, len(target.layers))):
        return f"its layers ask for windows of {target.windows} keys, its config for {wanted}"
    mine = [found[(document_1S[0] == i).to(found.device)] for i in range(len(expected))]
    worst = max(median_error(*pair) for pair in zip(mine, expected, strict=True))
    return None if worst < target.tolerance else f"features of packed documents are off by {worst:.1e}"


def median_error(found: Tensor, expected: Tensor) -> float:
    """Median over tokens of the relative error of [..., F*H]; infinite when something is not finite.

    The median: in low precision a router that flips at a tie changes single tokens.
    """
    if not torch.isfinite(found).all():
        return float("inf")
    exact = torch.float64 if found.dtype == torch.float64 else torch.float32
    found, expected = found.flatten(0, -2).to(exact), expected.flatten(0, -2).to(exact)
    error = (found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-12)
    return float(error.median())


def _windows(config: object, kinds: list[str], layers: int) -> list[int]:
    """Keys that each layer may see by the config, itself among them; 0: all before it."""
    window = getattr(config, "sliding_window", None) or 0
    if not kinds:
        return [window] * layers
    return [window if kind == "sliding_attention" else 0 for kind in kinds[:layers]]
