"""A lasting drop of the rate: seen once, named, and never seen where there is none."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfl_mp.pace import LOW, WINDOW_STEPS, WINDOWS, Drop, Pace


def drops(pace: Pace, steps: list[tuple[float, float]], drafters: int = 2) -> list[Drop]:
    return [drop for step_s, wait_s in steps if (drop := pace.step(step_s, wait_s, drafters)) is not None]


@given(seconds=st.floats(0.005, 50.0), noise=st.floats(0.0, 0.2), seed=st.integers(0, 2**32), share=st.floats(0, 1))
def test_never_on_a_constant_rate(seconds: float, noise: float, seed: int, share: float) -> None:
    rng = random.Random(seed)
    times = [seconds * (1 + rng.choice((-noise, noise, rng.uniform(-noise, noise)))) for _ in range(1500)]
    assert drops(Pace(), [(time, share * time) for time in times]) == []


@given(seconds=st.floats(0.1, 5.0), factor=st.floats(1.7, 20.0), seed=st.integers(0, 2**32), waits=st.booleans())
def test_once_for_each_lasting_drop(seconds: float, factor: float, seed: int, waits: bool) -> None:
    rng, pace = random.Random(seed), Pace()

    def stretch(slower: float) -> list[Drop]:
        times = [seconds * slower * rng.uniform(0.99, 1.01) for _ in range(400)]
        return drops(pace, [(time, time - seconds if waits and slower > 1 else 0.0) for time in times])

    assert stretch(1.0) == []
    (first,) = stretch(factor)
    assert first.before_s / first.now_s < LOW
    assert ("wait for features" in first.cause) == waits
    assert stretch(1.0) == [], "a recovery is no drop"
    assert len(stretch(factor)) == 1


def test_says_what_share_was_waited() -> None:
    pace = Pace()
    assert drops(pace, [(1.0, 0.0)] * 60) == []
    (drop,) = drops(pace, [(5.0, 4.0)] * 200)
    assert drop == Drop(1.0, 5.0, 0.8, "drafters wait for features 80% of the time")
    assert drops(pace, [(5.0, 4.0)] * 1000) == []


@pytest.mark.parametrize("slow", [1, WINDOW_STEPS * (WINDOWS - 1)])
def test_a_stall_or_a_short_while_is_no_drop(slow: int) -> None:
    assert drops(Pace(), [*[(1.0, 0.0)] * 60, *[(30.0, 0.0)] * slow, *[(1.0, 0.0)] * 100]) == []


def test_another_number_of_drafters_begins_anew() -> None:
    pace = Pace()
    assert drops(pace, [(1.0, 0.0)] * 100, drafters=2) + drops(pace, [(2.0, 0.0)] * 100, drafters=1) == []
    assert len(drops(pace, [(8.0, 0.0)] * 100, drafters=1)) == 1
