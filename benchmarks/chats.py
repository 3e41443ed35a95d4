"""Conversations of random words, so that a run's rows are full: nothing can be learned from them.

Their lengths are spread, as those of real conversations are, and short ones fill the rows' ends.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

_TEXT = (
    "the function returns a list of items that belong to one value when it is called with no argument and raises an "
    "error if there is nothing to read or the file cannot be opened for writing by this process at the given time"
)
WORDS = _TEXT.split(" ")
SHARES = (0.01, 0.02, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Of a row that a conversation takes."""
CHARS_PER_TOKEN = 4.0
"""Of these words in the small tokenizer that ships with dfl-mp, about; only the mean length depends on it."""


def write_chats(path: Path, row_tokens: int, num_rows: int = 128, seed: int = 0) -> Path:
    """Some `num_rows` rows of `row_tokens` tokens as JSONL; runs that are longer go over them again."""
    rng = random.Random(seed)
    left = num_rows * row_tokens
    with path.open("w") as file:
        while left > 0:
            tokens = max(8, int(row_tokens * rng.choice(SHARES)))
            answer, length = [], 0.0
            while length < tokens * CHARS_PER_TOKEN:
                answer.append(rng.choice(WORDS))
                length += len(answer[-1]) + 1
            turns = [{"role": "user", "content": "go on"}, {"role": "assistant", "content": " ".join(answer)}]
            file.write(json.dumps({"messages": turns}) + "\n")
            left -= tokens
    return path
