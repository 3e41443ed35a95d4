"""How full rows of whole documents can be, and which row would be fuller. Pure.

Legend: D documents, S tokens in a row. A document longer than S / 2 shares its row only with shorter ones, so many of
just over S / 2 leave much padding, however they are packed.
"""

from __future__ import annotations

import math

import numpy as np

from dfl_mp.data.packing import pack_epoch

ENOUGH = 0.97
SAMPLE = 20_000
"""Documents that a trial packs at most."""
LONGER = (1.25, 4 / 3, 1.5, 2.0)
STEP = 128


def most_fill(lengths_D: np.ndarray, row_tokens: int) -> float:
    """An upper bound for any packing of whole documents.

    >>> most_fill(np.array([60, 60, 60, 20]), 100)
    0.6666666666666666
    """
    tokens = int(lengths_D.sum())
    rows = max(int((2 * lengths_D > row_tokens).sum()), math.ceil(tokens / row_tokens))
    return tokens / (rows * row_tokens)


def fill_of(lengths_D: np.ndarray, row_tokens: int, seed: int = 0) -> float:
    """Share of the tokens of one epoch's rows that are not padding."""
    rows = pack_epoch(lengths_D, row_tokens, len(lengths_D), (seed, 0))
    return float(lengths_D.sum() / (len(rows) * row_tokens))


def fuller_row(lengths_D: np.ndarray, row_tokens: int) -> tuple[int, float] | None:
    """(S, fill) of the first longer row that is at least ENOUGH full; None when there is none up to twice as long."""
    sample_D = lengths_D[:: math.ceil(len(lengths_D) / SAMPLE)]
    for factor in LONGER:
        longer = STEP * math.ceil(row_tokens * factor / STEP)
        if most_fill(sample_D, longer) >= ENOUGH and (fill := fill_of(sample_D, longer)) >= ENOUGH:
            return longer, fill
    return None
