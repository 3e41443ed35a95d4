"""Who is silent: also a worker that was stopped while there was no coordinator, and never said Hello to this one."""

from __future__ import annotations

from dfl_mp.roles.hearing import OWN_GAP_S, Hearing


def test_one_that_never_speaks_is_silent_since_it_was_listed() -> None:
    hearing = Hearing(0.0)
    hearing.listed("target-0.1", 1.0)
    for now in range(2, 70):
        hearing.listed("target-0.1", float(now))
        hearing.heard("drafter-0.1", float(now))
        silences = hearing.silences(float(now))
    assert silences == {"target-0.1": 68.0, "drafter-0.1": 0.0}
    hearing.gone("target-0.1")
    assert hearing.silences(70.0) == {"drafter-0.1": 1.0}


def test_a_coordinator_that_was_stopped_itself_blames_nobody() -> None:
    hearing = Hearing(0.0)
    hearing.heard("drafter-0.1", 0.0)
    assert hearing.silences(20 * OWN_GAP_S) == {"drafter-0.1": 0.0}
