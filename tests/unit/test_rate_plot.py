"""The rate over time of a run in which steps only come: no step is lost between stretches."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rate_plot import rates


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(1, 5)), min_size=1, max_size=40), st.floats(0.1, 20))
def test_all_steps_are_counted(gaps: list[tuple[float, int]], width_s: float) -> None:
    times = itertools.accumulate(gap for gap, _ in gaps)
    steps = itertools.accumulate(count for _, count in gaps)
    curve = list(zip(times, steps, strict=True))
    found = rates(curve, width_s)
    assert sum(rate for _, rate in found) * width_s == pytest.approx(curve[-1][1] - curve[0][1])
    assert len(found) >= (curve[-1][0] - curve[0][0]) / width_s - 1


def test_steps_taken_back_count_as_none_and_an_empty_curve_has_no_rate() -> None:
    assert rates([], 1.0) == []
    assert rates([(0.0, 0), (0.5, 8), (1.5, 4), (2.5, 6)], 1.0) == [(1.0, 8.0), (2.0, 0.0), (3.0, 2.0)]
