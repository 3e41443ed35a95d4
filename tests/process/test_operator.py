"""An operator at work: commands to runs of real processes, stub workers for the rules, real ones for the rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dfl_mp.log import read_lines
from dfl_mp.messages import Heartbeat, Status, Stop
from dfl_mp.transport.links import Link
from launcher import __main__ as cli
from launcher.compose import REPO
from launcher.run_dir import sweep
from tests.process.launches import MARK, Launch, launched, processes, until
from tests.process.tiny_run import write_inputs

ENVIRONMENT = dict(os.environ, CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
Said = pytest.CaptureFixture[str]


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"
    sweep(tmp_path / "run")


def told(said: Said, *words: object) -> tuple[int, str]:
    """Exit code and output of a command, which runs in this process."""
    said.readouterr()
    code = cli.run([str(word) for word in words])
    out, err = said.readouterr()
    return code, out + err


# ---- with stub workers: what the launcher does -----------------------------------------------------------------------


def test_kills_are_not_counted_and_what_is_removed_stays_away(run_dir: Path, capsys: Said) -> None:
    with launched(run_dir, "long", "cluster.restarts_per_worker=0") as launch:
        for incarnation in (1, 2, 3):
            pid = launch.pid_of("drafter-1", incarnation)
            code, text = told(capsys, "kill", run_dir, "drafter-1")
            assert (code, text) == (0, f"drafter-1.{incarnation} (pid {pid}) killed; it starts again\n")
        launch.pid_of("drafter-1", 4)
        code, text = told(capsys, "remove", run_dir, "drafter-1.4")
        assert code == 0 and text.endswith("removed; drafter-0 goes on\n")
        until(lambda: launch.told("Died")[-1]["worker"] == "drafter-1.4")
        assert told(capsys, "kill", run_dir, "drafter-1")[0] == told(capsys, "remove", run_dir, "drafter-1")[0] == 1
        assert told(capsys, "kill", run_dir, "drafter-0.9") == (1, "kill: drafter-0.9 is gone; drafter-0.1 runs now\n")
        code, text = told(capsys, "kill", run_dir, "drafter-9")
        assert code == 2
        assert text.startswith("kill: no worker drafter-9; there are target-0, drafter-0, drafter-1 and, to kill or")
        assert told(capsys, "restart", run_dir, "drafter-1") == (0, "drafter-1 starts again\n")
        launch.pid_of("drafter-1", 5)
        assert [d["suspect"] for d in launch.told("Died")] == [None] * 4
        code, text = told(capsys, "add-drafter", run_dir)
        assert (code, text) == (1, "add-drafter: train.packs_per_step=2: with 3 drafters some never work\n")
        os.kill(launch.pid_of("drafter-1", 5), signal.SIGKILL)
        assert launch.wait() == 1, "this death is counted"
        assert "drafter-1 died 1 times without a step in between" in launch.out


def test_one_that_does_not_end_when_asked_is_killed(run_dir: Path, capsys: Said) -> None:
    with launched(run_dir, "deaf") as launch:
        launch.pid_of("target-0")
        assert told(capsys, "restart", run_dir, "target-0")[0] == 0
        launch.pid_of("target-0", 2)
        [exited] = launch.events("worker_exited", "target-0")
        assert exited["signal"] == "SIGKILL"


def _the_coordinator_is_killed_and_restarted(launch: Launch, said: Said) -> None:
    """By name, although it is deaf; its successors are not, and none of it counts as a death."""
    code, text = told(said, "kill", launch.run_dir, "coordinator")
    first, *others = [event["pid"] for event in launch.events("worker_started", "coordinator")]
    assert code == 0 and len(others) == 1, text
    assert text == f"coordinator.1 (pid {first}) killed; coordinator.2 (pid {others[0]}) has started\n"
    gone = (1, "kill: coordinator.1 is gone; coordinator.2 runs now\n")
    assert told(said, "kill", launch.run_dir, "coordinator.1") == gone
    code, text = told(said, "restart", launch.run_dir, "coordinator.2")
    assert code == 0 and text.startswith(f"coordinator.2 (pid {others[0]}) ended; coordinator.3 (pid ")
    assert [event["signal"] for event in launch.events("worker_exited", "coordinator")] == ["SIGKILL", "SIGTERM"]
    until(lambda: told(said, "kill", launch.run_dir, "drafter-1")[0] == 0)


def test_no_coordinator_no_answer(run_dir: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.asking.ANSWER_WITHIN_S", 0.5)
    with launched(run_dir, "long", "cluster.restarts_per_worker=0") as launch:
        launch.pid_of("drafter-1")
        until(lambda: json.loads((run_dir / "progress.json").read_text())["phase"] == "train")
        os.kill(launch.events("worker_started", "coordinator")[0]["pid"], signal.SIGSTOP)
        code, text = told(capsys, "kill", run_dir, "drafter-1")
        assert code == 1 and "the coordinator is starting (again) and does not answer yet" in text
        _the_coordinator_is_killed_and_restarted(launch, capsys)
        launch.process.send_signal(signal.SIGINT)


def test_an_added_drafter_that_does_not_start_ends_nothing(run_dir: Path, capsys: Said) -> None:
    with launched(run_dir, "broken", "cluster.drafters=1") as launch:
        launch.pid_of("drafter-0")
        assert told(capsys, "add-drafter", run_dir)[0] == 0
        until(lambda: launch.events("worker_removed", "drafter-1"))
        until(lambda: launch.told("Died"))
        code, text = told(capsys, "stop", run_dir)
        assert code == 0 and "stopped after 0 steps" in text
        assert launch.wait() == 1
        assert "drafter-1 failed to start; the run goes on without it" in launch.out


# ---- a real run ------------------------------------------------------------------------------------------------------


class Run:
    """A tiny run with real workers that goes on until it is stopped."""

    def __init__(self, folder: Path) -> None:
        self.dir, self._out = folder / "run", (folder / "out").open("a+")
        self._environment = ENVIRONMENT | {MARK: str(self.dir)}
        self.start("train", *write_inputs(folder), "cluster.drafters=2", "train.max_steps=20000", f"run.dir={self.dir}")

    def start(self, *words: str) -> None:
        command = [sys.executable, "-m", "launcher", *words]
        self.process = subprocess.Popen(
            command, cwd=REPO, env=self._environment, stdout=self._out, stderr=self._out, start_new_session=True
        )

    @property
    def lines(self) -> list[dict[str, Any]]:
        return read_lines(self.dir / "metrics.jsonl")

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in read_lines(self.dir / "events.jsonl") if event["event"] == kind]

    def goes_on(self, steps: int = 3, drafters: int = 1) -> None:
        """Waits for some more steps with so many drafters."""
        goal = len(self.lines) + steps
        until(lambda: len(self.lines) >= goal and self.lines[-1]["drafters"] == drafters, within=60.0)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        sweep(self.dir)
        self._out.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    try:
        yield made
    finally:
        made.close()


def seen(run: Run, said: Said) -> dict[str, Any]:
    code, text = told(said, "status", run.dir, "--json")
    assert code == 0, text
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


@pytest.mark.timeout(900)
def test_a_run_is_looked_after(run: Run, capsys: Said) -> None:
    until(lambda: run.lines, within=60.0)
    first = seen(run, capsys)
    assert (first["phase"], first["pid"], first["num_steps"]) == ("train", run.process.pid, 20000)
    pids = {row["name"]: row["pid"] for row in first["workers"]}
    assert list(pids) == ["target-0", "drafter-0", "drafter-1"]
    began = time.monotonic()
    code, text = told(capsys, "kill", run.dir, "drafter-1")
    assert (code, text) == (0, f"drafter-1.1 (pid {pids['drafter-1']}) killed; it starts again\n")
    assert time.monotonic() - began < 2.0
    _late_words_are_answered_with_stop(run)
    _checkpoint(run, capsys)
    _target_goes_and_comes_back(run, capsys)
    run.goes_on(drafters=2)
    assert told(capsys, "restart", run.dir, "coordinator")[0] == 0
    run.goes_on(drafters=2)
    _drafters_go_and_come_back(run, capsys)
    _stop_and_resume(run, capsys)


def _late_words_are_answered_with_stop(run: Run) -> None:
    until(lambda: any(e["worker"] == "drafter-1" for e in run.events("worker_exited")))
    link = Link(run.dir, "drafter-1.1")
    try:
        status = Status(state="working", since_s=0.0, step=0, busy_s=1.0, wait_s=1.0, packs=0)
        until(lambda: link.send(Heartbeat(status=status), within=5.0) and link.receive(0.5) == Stop())
    finally:
        link.close()


def _checkpoint(run: Run, said: Said) -> None:
    steps = len(run.lines)
    code, text = told(said, "checkpoint", run.dir)
    assert code == 0 and "is saved in" in text
    folder = Path(text.split()[-1])
    assert (folder / "drafter.safetensors").exists() and int(folder.name.removeprefix("step_")) >= steps


def _target_goes_and_comes_back(run: Run, said: Said) -> None:
    code, text = told(said, "remove", run.dir, "target-0")
    assert code == 0 and "no target is left: the run waits for make restart WORKER=target-0" in text
    until(lambda: seen(run, said)["waiting_for"] is not None)
    assert "no target is left" in told(said, "status", run.dir)[1]
    assert told(said, "restart", run.dir, "target-0")[0] == 0


def _drafters_go_and_come_back(run: Run, said: Said) -> None:
    """The last one is saved before it goes; the next one goes on from there."""
    assert told(said, "remove", run.dir, "drafter-0")[0] == 0
    run.goes_on(drafters=1)
    code, text = told(said, "remove", run.dir, "drafter-1")
    assert code == 0 and text.startswith("saving step ") and "no drafter is left" in text
    until(lambda: seen(run, said)["waiting_for"] is not None)
    left = len(run.lines)
    assert run.events("checkpoint_saved")[-1]["steps"] == left
    assert told(said, "add-drafter", run.dir) == (
        0,
        "drafter-0 starts on CPU; it joins the others once it is ready\n",
    )
    run.goes_on(drafters=1)
    assert run.events("rewound") == [], "nothing had to be trained again"
    assert [line["step"] for line in run.lines] == list(range(len(run.lines))) and len(run.lines) > left


def _stop_and_resume(run: Run, said: Said) -> None:
    code, text = told(said, "stop", run.dir)
    assert code == 0 and f"resume with: make resume RUN={run.dir}" in text
    assert run.process.wait(timeout=5.0) == 1 and processes(run.dir) == []
    stopped = len(run.lines)
    assert f"stopped after {stopped} steps" in text and run.events("checkpoint_saved")[-1]["steps"] == stopped
    assert told(said, "kill", run.dir, "drafter-0")[0] == 1
    code, text = told(said, "resume", run.dir, "optim.lr=1e-5")
    assert code == 2 and "optim.lr (was 0.003, now 1e-05)" in text
    run.start("resume", str(run.dir), "cluster.drafters=1")
    run.goes_on(drafters=1)
    assert told(said, "resume", run.dir) == (2, f"error: run.dir: {run.dir} is in use by process {run.process.pid}\n")
    assert told(said, "stop", run.dir)[0] == 0
    assert run.events("rewound") == []
    assert [n for line in run.lines for n in line["packs"]] == list(range(4 * len(run.lines)))
