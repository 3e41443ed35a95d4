"""Rows of whole documents: how full they can be, how full they are, and what is said of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfl_mp.data.fill import ENOUGH, fill_of, fuller_row, most_fill


def chats(count: int, seed: int = 0) -> np.ndarray:
    """Lengths as in conversations cut into parts of some 2,000 tokens: many short ones, most of 1,500 to 2,600."""
    rng = np.random.default_rng(seed)
    short = rng.lognormal(5.9, 0.8, count // 2)
    long = rng.normal(2050, 250, count - count // 2)
    return np.clip(np.concatenate((short, long)), 50, 3072).astype(np.int64)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(100, 250))
def test_no_packing_beats_the_bound(lengths: list[int], row_tokens: int) -> None:
    assert 0 < fill_of(np.array(lengths), row_tokens) <= most_fill(np.array(lengths), row_tokens) <= 1


def test_best_fit_comes_close_to_the_bound_and_a_longer_row_is_proposed() -> None:
    lengths_D = chats(2000)
    bound = most_fill(lengths_D, 3072)
    assert bound < ENOUGH, "half of the documents are longer than half a row"
    assert fill_of(lengths_D, 3072) > 0.97 * bound
    longer = fuller_row(lengths_D, 3072)
    assert longer is not None and longer[0] in (3840, 4096, 4608) and longer[1] >= ENOUGH
    assert fill_of(chats(2000, seed=1), longer[0]) >= ENOUGH, "also of other documents of the kind"


@pytest.mark.parametrize("row_tokens", [100, 101])
def test_nothing_is_proposed_where_nothing_helps(row_tokens: int) -> None:
    assert fuller_row(np.array([100]), row_tokens) is None
