"""One answer of an evaluation in words, cut where each forward of the target ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dfl_mp.config import TargetConfig
from dfl_mp.model.decode import Decoded

PARTIAL = "\ufffd"
"""What a tokenizer writes for bytes that are not a whole character yet."""


def typical(answers: Sequence[Decoded]) -> int | None:
    """Index of the answer whose mean accepted length lies nearest to the mean of all; None without a verification.

    >>> typical([Decoded((1, 2), (1,)), Decoded((1, 2, 3), (2,)), Decoded((1, 2, 3, 4, 5, 6), (5,))])
    1
    """
    means = {i: sum(a.accepted_lengths) / len(a.accepted_lengths) for i, a in enumerate(answers) if a.accepted_lengths}
    if not means:
        return None
    middle = sum(means.values()) / len(means)
    return min(means, key=lambda i: (abs(means[i] - middle), i))


def runs_of(answer: Decoded, tokenizer: Any) -> list[tuple[str, int]]:
    """(text, tokens) of each forward of the target: the prefill's one token, then one run per verification.

    Joined, the texts are the answer. Bytes of a character that is cut between two runs count to the later one.
    """
    runs: list[tuple[str, int]] = []
    shown, end = "", 0
    for count in (1, *answer.accepted_lengths):
        end += count
        text = tokenizer.decode(answer.tokens[:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        if end < len(answer.tokens):
            text = text.rstrip(PARTIAL)
        runs.append((text[len(shown) :], count))
        shown = text if len(text) > len(shown) else shown
    return runs


def sample(config: TargetConfig, path: str, texts: Sequence[str], answers: Sequence[Decoded]) -> dict[str, Any] | None:
    """`{"prompt": text, "runs": [[text, tokens], …]}` of a typical answer. `path`: the target's, for its tokenizer."""
    from transformers import AutoTokenizer

    chosen = typical(answers)
    if chosen is None:
        return None
    tokenizer = AutoTokenizer.from_pretrained(
        path, revision=config.revision, trust_remote_code=config.trust_remote_code
    )
    return {"prompt": texts[chosen], "runs": [list(run) for run in runs_of(answers[chosen], tokenizer)]}
