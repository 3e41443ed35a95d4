"""The launcher with real processes: what they inherit, what is left when it ends in any way, who is started again."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.child import ALWAYS, THREADS
from launcher.run_dir import sweep
from tests.process.launches import launched, processes, until

OURS = {*ALWAYS, *THREADS, "PYTHONPATH", "DFL_DEATH_PIPE", "LC_CTYPE"}


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"
    sweep(tmp_path / "run")


def nothing_left(run_dir: Path) -> None:
    assert processes(run_dir) == []


def test_whole_run(run_dir: Path) -> None:
    with launched(run_dir) as launch:
        assert launch.wait() == 0, launch.err
        inherited = json.loads((run_dir / "env.drafter-1.1.json").read_text())
        wanted = {key: value for key, value in launch.environment.items() if key not in OURS}
        assert {key: inherited.get(key) for key in wanted} == wanted
        assert inherited["OMP_NUM_THREADS"] == "1" and inherited["NCCL_SOCKET_IFNAME"] == "lo"
        summary = json.loads((run_dir / "summary.json").read_text())
        assert (summary["steps"], summary["tokens"], summary["loss"]) == (10, 50.0, 1.0)
        assert summary["tokens_per_s"] == pytest.approx(250.0)
        assert (summary["tau_mean"], summary["tau_untrained"], summary["greedy_identical"]) == (3.0, 1.0, 1.0)
        assert "loss        10.000 -> 1.000" in launch.out and "1.000 -> 3.000" in launch.out
        assert {e["worker"] for e in launch.events("worker_ready")} == {"target-0", "drafter-0", "drafter-1"}
        assert all(e["code"] == 0 for e in launch.events("worker_exited"))
        assert launch.told("Alive")[0]["workers"] == ["target-0.1", "drafter-0.1", "drafter-1.1"]
        assert run_dir.stat().st_mode & 0o777 == 0o700
        nothing_left(run_dir)


def test_killed_launcher_leaves_no_orphan_and_the_next_one_resumes(run_dir: Path) -> None:
    with launched(run_dir, "long") as launch:
        launch.pid_of("drafter-1")
        launch.process.kill()
        until(lambda: processes(run_dir) == [], within=2.0)
    with launched(run_dir) as launch:
        assert launch.wait() == 0, launch.err
        assert "resuming" in launch.out
        assert launch.told("Alive")[-1]["workers"] == ["target-0.2", "drafter-0.2", "drafter-1.2"]
        nothing_left(run_dir)


def test_killed_launcher_while_workers_start(run_dir: Path) -> None:
    with launched(run_dir, "long") as launch:
        until(lambda: launch.events("worker_started", "drafter-1"))
        launch.process.kill()
        until(lambda: processes(run_dir) == [], within=2.0)


@pytest.mark.parametrize("seed", range(4))
def test_interrupt_at_any_moment(run_dir: Path, seed: int) -> None:
    rng = random.Random(seed)
    with launched(run_dir, rng.choice(["long", "slow"])) as launch:
        until(lambda: (run_dir / "events.jsonl").exists())
        time.sleep(rng.uniform(0.0, 1.8))
        launch.process.send_signal(rng.choice([signal.SIGINT, signal.SIGTERM]))
        assert launch.wait() == 1 or "summary" in launch.out
        assert "Traceback" not in launch.err
        nothing_left(run_dir)


def test_second_interrupt_kills_workers_that_do_not_listen(run_dir: Path) -> None:
    with launched(run_dir, "deaf", "deadline.stop=60.0") as launch:
        launch.pid_of("target-0"), launch.pid_of("drafter-0"), launch.pid_of("drafter-1")
        launch.process.send_signal(signal.SIGINT)
        until(lambda: launch.told("Shutdown"))
        launch.process.send_signal(signal.SIGINT)
        assert launch.wait(within=5.0) == 1
        assert "resume with: make resume RUN=" in launch.out
        nothing_left(run_dir)


def test_worker_that_does_not_start_ends_the_run_with_its_traceback(run_dir: Path) -> None:
    with launched(run_dir, "broken") as launch:
        assert launch.wait() == 1
        assert "RuntimeError: the stub does not start" in launch.out
        nothing_left(run_dir)


def test_worker_killed_while_the_run_is_prepared_is_started_again(run_dir: Path) -> None:
    with launched(run_dir, "slow") as launch:
        until(lambda: launch.events("worker_started", "drafter-1"))
        assert not launch.told("Alive")
        os.kill(launch.events("worker_started", "drafter-1")[0]["pid"], signal.SIGKILL)
        assert launch.wait() == 0, launch.err
        assert [e["incarnation"] for e in launch.events("worker_ready", "drafter-1")] == [2]
        nothing_left(run_dir)


def test_a_killed_evaluator_starts_again_and_a_trained_run_is_only_evaluated(run_dir: Path) -> None:
    with launched(run_dir, "slow") as launch:
        until(lambda: launch.events("worker_started", "evaluator"))
        os.kill(launch.events("worker_started", "evaluator")[0]["pid"], signal.SIGKILL)
        until(lambda: len(launch.events("worker_started", "evaluator")) == 2)
        launch.process.kill()
        launch.wait()
    (run_dir / "checkpoints" / "step_00000010").mkdir(parents=True)
    started = len(launch.events("worker_started"))
    with launched(run_dir) as launch:
        assert launch.wait() == 0, launch.err
        assert [e["worker"] for e in launch.events("worker_started")[started:]] == ["prepare", "evaluator"]
    with launched(run_dir) as launch:
        assert launch.wait() == 0 and "is finished: there is nothing to resume" in launch.out
        nothing_left(run_dir)


def test_spent_budget_ends_the_run_with_the_last_traceback(run_dir: Path) -> None:
    with launched(run_dir, "crashing", "cluster.restarts_per_worker=1") as launch:
        assert launch.wait() == 1
        assert "ZeroDivisionError: the stub drafter-0.2 crashes" in launch.out
        assert len(launch.events("worker_restarted", "drafter-0")) == 1
        nothing_left(run_dir)


def test_wrong_input(run_dir: Path) -> None:
    with launched(run_dir, "refuse") as launch:
        assert launch.wait() == 2
        assert launch.err == "error: data.path: line 3 is no conversation\n"
        nothing_left(run_dir)


def test_folder_in_use_or_of_another_run(run_dir: Path) -> None:
    with launched(run_dir, "long") as first:
        first.pid_of("drafter-1")
        with launched(run_dir, "long") as second:
            assert second.wait() == 2
            assert f"in use by process {first.process.pid}" in second.err
        first.process.send_signal(signal.SIGINT)
        first.wait()
    with launched(run_dir, "", "optim.lr=1e-4") as third:
        assert third.wait() == 2
        assert "optim.lr (was 0.003, now 0.0001)" in third.err


def test_killed_worker_and_coordinator_are_started_again(run_dir: Path) -> None:
    with launched(run_dir, "long") as launch:
        os.kill(launch.pid_of("drafter-1"), signal.SIGKILL)
        launch.pid_of("drafter-1", incarnation=2)
        until(lambda: launch.told("Started"))
        assert launch.told("Died") == [{"kind": "Died", "worker": "drafter-1.1", "suspect": None}]
        assert launch.told("Started") == [{"kind": "Started", "worker": "drafter-1.2"}]
        os.kill(launch.events("worker_started", "coordinator")[0]["pid"], signal.SIGKILL)
        until(lambda: len(launch.told("Alive")) == 2)
        assert set(launch.told("Alive")[1]["workers"]) == {"target-0.1", "drafter-0.1", "drafter-1.2"}
        launch.process.send_signal(signal.SIGINT)
        assert launch.wait() == 1
        nothing_left(run_dir)


@pytest.mark.parametrize(("mode", "suspect"), [("poison", 7), ("stuck", None)])
def test_crashed_or_stuck_worker_is_its_own_doing(run_dir: Path, mode: str, suspect: int | None) -> None:
    with launched(run_dir, mode) as launch:
        assert launch.wait() == 0, launch.out
        assert [d["suspect"] for d in launch.told("Died") if d["worker"].endswith(".1")][:1] == [suspect]
        nothing_left(run_dir)
