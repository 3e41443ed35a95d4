"""One run of real processes through aimed faults ends as an undisturbed one does; `make chaos` does it at length."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.plan import chosen
from tests.chaos.session import Session
from tests.chaos.states import CONT, KILL, NOISE, RESTART, STUCK

FAULTS = (
    ("drafter.in_reduce", KILL),
    ("coordinator.commit_half_told", KILL),
    ("drafter.commit_heard.coordinator", KILL),
    ("coordinator.line_unwritten", STUCK),
    ("hostile.anywhere", NOISE),
    ("drafter.mid_copy", CONT),
    ("drafter.torn_save", KILL),
    ("target.mid_forward", RESTART),
    ("launcher.anywhere", KILL),
)


@pytest.mark.timeout(900)
def test_aimed_faults_do_not_change_the_result(tmp_path: Path) -> None:
    said: list[str] = []
    session = Session(tmp_path / "chaos", 60, said.append)
    try:
        failed = session.run(0, chosen(0, *FAULTS))
        assert not failed, "\n".join([failed, *said])
        assert {state for _, state, *_ in session.hits} == {state for state, _ in FAULTS}, "\n".join(said)
    finally:
        session.close()
