"""Speculative decoding with a drafter, greedy decoding without, and what is measured on them.

Source: arXiv 2602.06036, "Acceptance length".
Legend: K block size · V vocabulary · F features of a token. One response at a time (B = 1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_mp.model.drafter import Drafter, DrafterCache
from dfl_mp.model.shapes import FrozenEnds
from dfl_mp.model.target_full import FullTarget


@dataclass(frozen=True)
class Limits:
    """When a response ends: at a token of `stop_ids`, which it keeps, or after `max_new_tokens`."""

    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Decoded:
    """A response: its tokens, and how many of them each verification committed (the first token is the prefill's)."""

    tokens: tuple[int, ...]
    accepted_lengths: tuple[int, ...]


@dataclass(frozen=True)
class Acceptance:
    """τ over several responses, temperature 0, bonus token included.

    `tau_mean` is the mean over responses of the mean within each, `tau_pooled` all tokens over all verifications.
    `histogram[n]` counts verifications that committed n tokens. Responses without a verification do not count.
    """

    tau_mean: float
    tau_pooled: float
    histogram: dict[int, int]


def greedy(logits: Tensor) -> Tensor:
    """Temperature 0: [..., V] → [...]. Another sampler needs rejection sampling in `_committed` too."""
    return logits.argmax(-1)


@torch.no_grad()
def greedy_decode(target: FullTarget, prompt_ids: Sequence[int], limits: Limits) -> Decoded:
    """The target alone, one token at a time: what speculative decoding must reproduce."""
    cache = target.new_cache()
    feed = torch.tensor(prompt_ids, device=target.device)
    tokens: list[int] = []
    while len(tokens) < limits.max_new_tokens:
        logits, _ = target.forward(feed, cache, last=True)
        target.crop(cache, cache.length)
        feed = greedy(logits)
        tokens.append(int(feed))
        if tokens[-1] in limits.stop_ids:
            break
    return Decoded(tuple(tokens), ())


@torch.no_grad()
def speculative_decode(
    target: FullTarget,
    drafter: Drafter,
    ends: FrozenEnds,
    prompt_ids: Sequence[int],
    limits: Limits,
    zero_features: bool = False,
) -> Decoded:
    """Greedy decoding in blocks: the drafter proposes K − 1 tokens, the target verifies them in one pass.

    A block is [last committed token, MASK, …]; the last one is cut to what remains. The drafter's context holds the
    features of every committed token before that one. `zero_features` blanks them, to show what they are worth.
    """
    cache, context = target.new_cache(), DrafterCache()
    spec = drafter.spec
    logits, features_TF = target.forward(torch.tensor(prompt_ids, device=target.device), cache, last=True)
    target.crop(cache, cache.length)
    tokens, accepted = [int(greedy(logits))], []
    last_token = len(prompt_ids) + limits.max_new_tokens
    while tokens[-1] not in limits.stop_ids and len(tokens) < limits.max_new_tokens:
        start = cache.length
        block_K = torch.full((min(spec.block_size, last_token - start),), spec.mask_token_id, device=target.device)
        block_K[0] = tokens[-1]
        features_TF = torch.zeros_like(features_TF) if zero_features else features_TF
        block_K[1:] = _draft(drafter, ends, context, features_TF, block_K, start)
        logits_KV, features_KF = target.forward(block_K, cache)
        committed = _committed(block_K, greedy(logits_KV), limits, limits.max_new_tokens - len(tokens))
        target.crop(cache, start + len(committed))
        features_TF = features_KF[: len(committed)]
        tokens += committed
        accepted.append(len(committed))
    return Decoded(tuple(tokens), tuple(accepted))


def _draft(
    drafter: Drafter, ends: FrozenEnds, context: DrafterCache, features_TF: Tensor, block_K: Tensor, start: int
) -> Tensor:
    """Append the new context, which ends at position `start` − 1, and propose K − 1 tokens behind the block's first."""
    dtype = drafter.fc.weight.dtype
    positions_1T = torch.arange(start - len(features_TF), start, device=block_K.device)[None]
    context.append(drafter, features_TF[None].to(dtype), positions_1T)
    positions_1K = torch.arange(start, start + len(block_K), device=block_K.device)[None]
    hidden_1KH = drafter.decode_block(ends.embed(block_K[None]).to(dtype), positions_1K, context)
    return greedy(ends.logits(hidden_1KH[0, 1:].to(ends.head_VH.dtype)))


def _committed(block_K: Tensor, choice_K: Tensor, limits: Limits, remaining: int) -> list[int]:
    """The agreeing prefix of the draft and the target's own next token, cut at a stop token and at what remains."""
    choice = choice_K.tolist()
    agree = 0
    for drafted, chosen in zip(block_K[1:].tolist(), choice, strict=False):
        if drafted != chosen:
            break
        agree += 1
    new = choice[: agree + 1][:remaining]
    stop = next((i for i, token in enumerate(new) if token in limits.stop_ids), len(new) - 1)
    return new[: stop + 1]


def acceptance(responses: Iterable[Decoded]) -> Acceptance:
    """τ of some responses; both means are 0 when no response had a verification.

    >>> acceptance([Decoded((5, 6, 7, 8), (3,)), Decoded((5, 6, 7), (1, 1))])
    Acceptance(tau_mean=2.0, tau_pooled=1.6666666666666667, histogram={1: 2, 3: 1})
    """
    counted = [r.accepted_lengths for r in responses if r.accepted_lengths]
    lengths = [n for accepted in counted for n in accepted]
    if not counted:
        return Acceptance(0.0, 0.0, {})
    means = [sum(accepted) / len(accepted) for accepted in counted]
    return Acceptance(sum(means) / len(means), sum(lengths) / len(lengths), dict(sorted(Counter(lengths).items())))


def repetition_rate(tokens: Sequence[int], n: int = 4) -> float:
    """Share of n-grams that occurred earlier in the same response; 0 when it is shorter than n.

    >>> repetition_rate([1, 2, 1, 2, 1, 2, 1])
    0.5
    """
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
