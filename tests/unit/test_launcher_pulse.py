from __future__ import annotations

from launcher.pulse import OWN_GAP_S, SILENT_AFTER_S, Pulse


def test_silence_grows_until_the_coordinator_is_heard() -> None:
    pulse = Pulse(0.0)
    assert [pulse.silence(float(t), heard=t in (0, 1, 5)) for t in range(8)] == [0, 0, 1, 2, 3, 0, 1, 2]


def test_a_coordinator_that_is_stopped_is_silent_for_too_long() -> None:
    pulse = Pulse(0.0)
    turns = [pulse.silence(t / 2, heard=False) for t in range(int(4 * SILENT_AFTER_S))]
    assert max(turns) > SILENT_AFTER_S


def test_a_launcher_that_was_stopped_itself_blames_nobody() -> None:
    pulse = Pulse(0.0)
    assert pulse.silence(100 * OWN_GAP_S, heard=False) == 0.0
