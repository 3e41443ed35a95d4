"""The gate between a run's preparation and its workers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dfl_mp.errors import DeadlineError
from dfl_mp.gate import GATE, Gate, pass_gate
from launcher.compose import REPO

WAIT = "from dfl_mp.gate import pass_gate; print('here', flush=True); pass_gate(); print('through', flush=True)"


def waiting(gate: Gate) -> subprocess.Popen[str]:
    environment = dict(os.environ, PYTHONPATH=str(REPO)) | {GATE: gate.setting}
    command = [sys.executable, "-c", WAIT]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, pass_fds=(gate.read_end,))


def test_all_that_wait_are_let_through_at_once() -> None:
    gate = Gate(within=20.0)
    workers = [waiting(gate) for _ in range(2)]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "here\n"
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(timeout=0.1)
    gate.open()
    assert [worker.communicate(timeout=20.0)[0] for worker in workers] == ["through\n"] * 2


def test_a_gate_that_stays_closed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(within=0.05)
    monkeypatch.setenv(GATE, f"{os.dup(gate.read_end)}:0.05")
    with pytest.raises(DeadlineError, match="not prepared within 0 s"):
        pass_gate()
    gate.open()


def test_without_a_gate_nothing_is_waited_for() -> None:
    pass_gate()
