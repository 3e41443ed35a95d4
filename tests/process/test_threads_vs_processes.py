"""Two drafters, one compiling while the other trains: as threads of one process, and as two processes.

The moments are forced (`benchmarks/threads_vs_processes/forced.py`), so that the outcome does not depend on luck.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.threads_vs_processes.flags import seen_from_another_thread
from benchmarks.threads_vs_processes.forced import AFTER, BEFORE, DURING, MEET_S, ROLES
from benchmarks.threads_vs_processes.summary import losses_of, read_journals
from launcher.compose import REPO

FX_ERROR = "you are using FX to symbolically trace a dynamo-optimized function"
COMPILER, TRAINER = (sorted(ROLES).index(role) for role in ("compiler", "trainer"))
TRIES = {COMPILER: BEFORE + AFTER, TRAINER: BEFORE + DURING + AFTER}


def play(folder: Path, *interpreters: list[str]) -> dict[int, list[dict[str, Any]]]:
    """Run the roles, those of one list in one interpreter, and return what each drafter noted."""
    command = [sys.executable, "-m", "benchmarks.threads_vs_processes.forced", str(folder)]
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    children = [subprocess.Popen([*command, *roles], cwd=REPO, env=environment) for roles in interpreters]
    try:
        codes = [child.wait(2 * MEET_S) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    journals = read_journals(folder)
    assert codes == [0] * len(children) and all(events[-1]["event"] == "end" for events in journals.values()), journals
    assert set(journals) == set(TRIES)
    return journals


def failures(events: list[dict[str, Any]]) -> list[str]:
    return [event["error"] for event in events if event["event"] == "failed"]


def after_the_trace(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return events[[event["event"] for event in events].index("after") + 1 : -1]


@pytest.mark.timeout(300)
def test_processes_train_as_if_alone(tmp_path: Path) -> None:
    journals = play(tmp_path, ["compiler"], ["trainer"])
    for drafter, events in journals.items():
        assert failures(events) == []
        assert len(losses_of(events)) == TRIES[drafter]
    compiler, trainer = losses_of(journals[COMPILER]), losses_of(journals[TRAINER])
    assert compiler == pytest.approx(trainer[: len(compiler)], rel=1e-4)


@pytest.mark.timeout(300)
def test_threads_lose_every_step_where_torch_keeps_the_tracing_flag_once_per_process(tmp_path: Path) -> None:
    per_process = seen_from_another_thread()["fx tracing flag"]
    for drafter, events in play(tmp_path, ["compiler", "trainer"]).items():
        later = after_the_trace(events)
        if per_process:
            # No trace is under way any more: the flag was put back by one thread after the other had cleared it.
            assert len(later) == AFTER and all(e["event"] == "failed" and FX_ERROR in e["error"] for e in later)
        else:
            assert not failures(events) and len(losses_of(events)) == TRIES[drafter]
