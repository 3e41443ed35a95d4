"""Stage 4: the target's own greedy answers in float32, and what makes an answer usable.

Legend: B prompts of a batch · S tokens of the longest prompt, padded on the left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel

MARGIN = 1e-3
"""Logits. Where the two best tokens are closer, another machine's float32 may choose the other one."""
MAX_REPEATED = 0.3


@dataclass(frozen=True)
class Answer:
    """`tokens` without the end of turn; `margin` is the least distance between the two best logits along the way."""

    tokens: list[int]
    finished: bool
    margin: float


def repeated(tokens: Sequence[int], n: int = 4) -> float:
    """Share of the n-grams that occurred before in the same answer.

    >>> repeated([1, 2, 3, 4, 1, 2, 3, 4])
    0.2
    """
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


@torch.no_grad()
def greedy(model: PreTrainedModel, prompts: list[list[int]], max_new: int, eos: int) -> list[Answer]:
    """Greedy answers to a batch of prompts, one forward a token with a key/value cache. The model must be float32."""
    assert model.dtype == torch.float32, model.dtype
    device, width = model.device, max(map(len, prompts))
    tokens_BS = torch.tensor([[eos] * (width - len(p)) + p for p in prompts], device=device)
    mask_BS = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    cache, open_B = DynamicCache(config=model.config), torch.ones(len(prompts), dtype=torch.bool, device=device)
    margin_B = torch.full((len(prompts),), torch.inf, device=device)
    chosen: list[torch.Tensor] = []
    positions_BS = (mask_BS.cumsum(1) - 1).clamp(min=0)
    for step in range(max_new):
        logits_BV = model(
            input_ids=tokens_BS,
            attention_mask=mask_BS,
            position_ids=positions_BS,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        best_B2 = logits_BV.topk(2)
        margin_B = torch.where(open_B, margin_B.minimum(best_B2.values[:, 0] - best_B2.values[:, 1]), margin_B)
        next_B = best_B2.indices[:, 0]
        chosen.append(next_B)
        open_B = open_B & (next_B != eos)
        if step % 8 == 7 and not open_B.any():
            break
        tokens_BS, positions_BS = next_B[:, None], positions_BS[:, -1:] + 1
        mask_BS = torch.cat([mask_BS, mask_BS.new_ones(len(prompts), 1)], dim=1)
    rows, margins = torch.stack(chosen, 1).tolist(), margin_B.tolist()
    return [Answer(r[: r.index(eos)] if eos in r else r, eos in r, m) for r, m in zip(rows, margins, strict=True)]


def answer_all(model: PreTrainedModel, prompts: list[list[int]], max_new: int, batch: int) -> list[Answer]:
    """Answers in the order of the prompts; prompts of like length share a batch."""
    eos, order = model.config.eos_token_id, sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i))
    found: dict[int, Answer] = {}
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        found.update(zip(part, greedy(model, [prompts[i] for i in part], max_new, eos), strict=True))
        print(f"answered {len(found)} of {len(prompts)}", flush=True)
    return [found[i] for i in range(len(prompts))]
