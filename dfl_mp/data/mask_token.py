"""The mask token: an existing row of the target's embedding that stands for "not known yet"."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from dfl_mp.errors import ConfigError
from dfl_mp.specs import TargetSpec

_SPARE = re.compile(r"mask|reserved|unused|extra|placeholder|spare", re.IGNORECASE)


def choose_mask_token(
    explicit: int | None, draft_config: int | None, tokenizer: Any, target: TargetSpec, used: Collection[int]
) -> tuple[int, str]:
    """(id, why). Order: explicit, draft config, the tokenizer's mask token, `len(tokenizer)` if the table has that row
    (Qwen3: 151669), a reserved special token that the data (`used`) never holds. Never pad, eos or unk.

    Raises ConfigError naming `drafter.mask_token_id`.
    """
    forbidden = forbidden_ids(tokenizer, target)
    for token, why in ((explicit, "as configured"), (draft_config, "from the draft's config")):
        if token is not None:
            _check(token, forbidden, target)
            return token, why + (", although the data holds it" if token in used else "")
    own = tokenizer.mask_token_id
    if own is not None and own < target.vocab_size and own not in forbidden:
        return int(own), f"the tokenizer's mask token {tokenizer.mask_token}"
    if len(tokenizer) < target.vocab_size:
        return len(tokenizer), "the first row of the embedding that no token has"
    spare = spare_special_tokens(tokenizer, target, used)
    if spare:
        return spare[0][0], f"the special token {spare[0][1]}, which the data never uses"
    raise ConfigError(
        "drafter.mask_token_id: the tokenizer has no mask token, the embedding no spare row and every special token is "
        f"in use; name an id below {target.vocab_size} that the data does not need"
    )


def forbidden_ids(tokenizer: Any, target: TargetSpec) -> dict[int, str]:
    """Ids that mean something to the target, with their meaning."""
    meanings = {token: "an end token of the target" for token in target.eos_token_ids}
    for name in ("unk", "eos", "pad"):
        token = getattr(tokenizer, f"{name}_token_id")
        if token is not None:
            meanings[int(token)] = f"the tokenizer's {name} token"
    return meanings


def spare_special_tokens(tokenizer: Any, target: TargetSpec, used: Collection[int]) -> list[tuple[int, str]]:
    """Special tokens that neither data, chat template nor tokenizer use, the likeliest first."""
    taken = set(used) | set(forbidden_ids(tokenizer, target)) | {tokenizer.bos_token_id}
    spare = [
        (token, added.content)
        for token, added in tokenizer.added_tokens_decoder.items()
        if added.special
        and token < target.vocab_size
        and token not in taken
        and added.content not in str(tokenizer.chat_template)
    ]
    return sorted(spare, key=lambda item: (not _SPARE.search(item[1]), -item[0]))


def _check(token: int, forbidden: dict[int, str], target: TargetSpec) -> None:
    if token >= target.vocab_size:
        raise ConfigError(f"drafter.mask_token_id: {token} is no row of an embedding of {target.vocab_size} rows")
    if token in forbidden:
        raise ConfigError(f"drafter.mask_token_id: {token} is {forbidden[token]}; it cannot stand for a masked token")
