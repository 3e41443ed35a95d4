from __future__ import annotations

from itertools import pairwise

import pytest

from dfl_mp.train.schedule import learning_rate
from tests.unit.model_cases import make_optim


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
def test_warm_up_is_linear_and_starts_above_zero(schedule: str) -> None:
    optim = make_optim(lr=1.0, warmup_ratio=0.04, schedule=schedule)
    assert [learning_rate(optim, s, 100) for s in range(4)] == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_cosine_falls_to_zero() -> None:
    optim = make_optim(lr=2.0, warmup_ratio=0.0, schedule="cosine")
    rates = [learning_rate(optim, s, 100) for s in range(101)]
    assert rates[0] == 2.0 and rates[50] == pytest.approx(1.0) and rates[100] == 0.0
    assert all(a > b for a, b in pairwise(rates))
    assert learning_rate(optim, 150, 100) == 0.0


def test_wsd_holds_then_decays() -> None:
    optim = make_optim(lr=1.0, warmup_ratio=0.1, schedule="wsd", decay_ratio=0.2)
    rates = [learning_rate(optim, s, 100) for s in range(100)]
    assert rates[9:81] == [1.0] * 72
    assert rates[90] == pytest.approx(0.5) and rates[99] == pytest.approx(0.05)


def test_constant_and_a_run_of_one_step() -> None:
    assert learning_rate(make_optim(lr=1.0, schedule="constant", warmup_ratio=0.0), 77, 100) == 1.0
    assert learning_rate(make_optim(lr=1.0, warmup_ratio=0.04), 0, 1) == 1.0
