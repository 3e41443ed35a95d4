"""Operator's commands without processes: words, placing one more drafter, what status shows, what resume reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dfl_mp import messages as m
from dfl_mp.errors import ConfigError
from launcher import __main__ as cli
from launcher import compose, ctl, resume, status
from launcher.machine import Gpu, Machine
from launcher.plan import Placement, one_more_drafter
from launcher.run_dir import open_run
from launcher.snapshot import Snapshot, Worker

NUMBERS: dict[str, Any] = {
    "step": 120,
    "num_steps": 1500,
    "loss": 3.21,
    "accept_len_est": 1.84,
    "tokens_per_s": 18_200.0,
    "eta_s": 102.0,
    "ready_slots": 3,
    "num_slots": 4,
    "generation": 2,
}


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was begun, and is over."""
    monkeypatch.chdir(tmp_path)
    run, _ = open_run(compose.load(["train.seed=5", "cluster.drafters=2"]))
    run.accept()
    run.close()
    (run.path / "lock").write_text("0\n")  # as if that process were gone
    return run.path


def write_events(run_dir: Path, *events: dict[str, Any]) -> None:
    (run_dir / "events.jsonl").write_text("".join(json.dumps({"time": 0.0, **event}) + "\n" for event in events))


def started(name: str, incarnation: int, pid: int) -> dict[str, Any]:
    return {"event": "worker_started", "worker": name, "incarnation": incarnation, "pid": pid}


# ---- words ----------------------------------------------------------------------------------------------------------


def test_run_and_worker_are_told_apart(run_dir: Path) -> None:
    assert ctl.read("kill", ["drafter-1"]) == ctl.Asked(run_dir, "drafter-1")
    assert ctl.read("restart", ["coordinator"]) == ctl.Asked(run_dir, "coordinator")
    assert ctl.read("kill", ["runs/latest", "drafter-1.2"]) == ctl.Asked(run_dir, "drafter-1.2")
    assert ctl.read("kill", ["runs/latest"]) == ctl.read("stop", []) == ctl.Asked(run_dir, "")


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("stop", ["runs/latest", "drafter-1"], "too many words"),
        ("kill", ["--now"], "unknown option '--now'"),
        ("status", ["runs/none"], "RUN: runs/none"),
        ("kill", ["runs/latest", "drafter-1", "drafter-2"], r"usage: kill \[RUN\] WORKER"),
    ],
)
def test_wrong_words(run_dir: Path, name: str, words: Sequence[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ctl.read(name, words)


@pytest.mark.parametrize("name", [name for name in ctl.HELP if name != "status"])
def test_a_run_that_is_over_says_so(run_dir: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    worker = ["drafter-0"] if name in ctl.OF_A_WORKER else []
    assert cli.run([name, str(run_dir), *worker]) == 1
    assert f"{name}: {status.short(run_dir)} is over" in capsys.readouterr().err
    if worker:
        assert cli.run([name, str(run_dir), "coordinator"]) == 1
        assert f"{name}: {status.short(run_dir)} is over" in capsys.readouterr().err


# ---- one more drafter ------------------------------------------------------------------------------------------------


def gpus(*busy: int, count: int = 4) -> Machine:
    return Machine(64, tuple(Gpu(str(i), 1, 1, "process 7 (x)" if i in busy else "") for i in range(count)))


def places(*names: str, on: Machine | None = None) -> dict[str, Placement]:
    return {name: Placement(name, on.gpus[i] if on else None) for i, name in enumerate(names)}


def test_one_more_on_cpu() -> None:
    two = places("target-0", "drafter-0", "drafter-1")
    assert one_more_drafter(two, (), Machine(2), 24) == Placement("drafter-2", None)
    with pytest.raises(ConfigError, match="1 cores take 4 workers"):
        one_more_drafter(places("target-0", "drafter-0", "drafter-1", "drafter-2"), (), Machine(1), 24)
    with pytest.raises(ConfigError, match=r"train\.packs_per_step=2"):
        one_more_drafter(two, (), Machine(2), 2)


def test_one_more_on_a_gpu_that_nobody_has() -> None:
    machine = gpus(0, 1)
    used = places("target-0", "drafter-0", on=machine)
    assert one_more_drafter(used, (), machine, 24) == Placement("drafter-1", machine.gpus[2])
    assert one_more_drafter(used, (), gpus(0, 1, 2), 24).gpu == machine.gpus[3]
    starting = gpus()  # our own workers hold no memory yet
    assert one_more_drafter(used, (), starting, 24).gpu == machine.gpus[2]
    with pytest.raises(ConfigError, match=r"no GPU is free \(GPU 0: target-0; GPU 1: drafter-0; GPU 2: process 7"):
        one_more_drafter(used, (), gpus(0, 1, 2, count=3), 24)


def test_a_removed_drafter_gives_up_its_place() -> None:
    machine = gpus(count=3)
    used = places("target-0", "drafter-0", "drafter-1", on=machine)
    assert one_more_drafter(used, {"drafter-0"}, machine, 24) == used["drafter-0"]
    assert one_more_drafter(used, {"drafter-0"}, machine, 2) == used["drafter-0"], "two work again"
    assert one_more_drafter(used, {"target-0"}, machine, 24).gpu == machine.gpus[0]


# ---- status ----------------------------------------------------------------------------------------------------------


def snapshot(*workers: Worker, phase: str = "train", progress: m.Progress | None = None) -> Snapshot:
    fields = {"time": 10.0, "began": 0.0, "pid": 99, "message": "reading 3 of 4"}
    return Snapshot(**fields, phase=phase, workers=workers, progress=progress)  # type: ignore[arg-type]


def progress(*workers: str) -> m.Progress:
    says = m.Status(state="working", since_s=61.0, step=3, busy_s=3.0, wait_s=1.0, packs=1234)
    return m.Progress(**NUMBERS, workers=tuple(m.WorkerLine(worker=w, status=says) for w in workers))


def test_status_of_a_run_under_way(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(
        run_dir,
        started("target-0", 1, 40),
        started("drafter-0", 1, 41),
        started("drafter-1", 2, 43),
        {"event": "worker_removed", "worker": "drafter-0"},
    )
    known = (
        Worker(name="drafter-10", id=None, state="down"),
        Worker(name="target-0", id="target-0.1", state="ready"),
        Worker(name="drafter-0", id=None, state="down"),
        Worker(name="drafter-1", id="drafter-1.1", state="ready"),
    )
    seen = status.gather(run_dir, snapshot(*known), progress("target-0.1", "drafter-1.2"))
    assert json.loads(json.dumps(seen)) == seen
    rows = {row["name"]: row for row in seen["workers"]}
    assert list(rows) == ["target-0", "drafter-0", "drafter-1", "drafter-10"]
    assert (rows["drafter-1"]["worker"], rows["drafter-1"]["pid"], rows["drafter-1"]["waiting"]) == (
        "drafter-1.2",
        43,
        0.25,
    )
    assert (rows["drafter-0"]["state"], rows["drafter-10"]["state"]) == ("removed", "down")
    assert seen["waiting_for"] is None
    status.show(seen)
    said = capsys.readouterr().out
    assert "step 120/1500  loss 3.210  accept_len_est 1.84  18.2K tokens/s  ETA 1:42" in said
    assert "generation 2  slots ready 3/4" in said
    line = next(line for line in said.splitlines() if line.startswith("drafter-1.2"))
    assert line.split() == ["drafter-1.2", "43", "working", "1:01", "1,234", "25%"]


@pytest.mark.parametrize(
    ("removed", "says"), [("drafter", "make add-drafter or make restart"), ("target", "no target")]
)
def test_status_says_whom_the_run_waits_for(run_dir: Path, removed: str, says: str) -> None:
    write_events(run_dir, {"event": "worker_removed", "worker": f"{removed}-0"})
    known = [Worker(name=name, id=None, state="down") for name in ("target-0", "drafter-0")]
    assert says in status.gather(run_dir, snapshot(*known), progress())["waiting_for"]
    write_events(run_dir, {"event": "worker_removed", "worker": f"{removed}-0"}, started(f"{removed}-0", 2, 5))
    assert status.gather(run_dir, snapshot(*known), progress())["waiting_for"] is None


def test_status_before_training_and_at_its_start(run_dir: Path) -> None:
    before = status.gather(run_dir, snapshot(phase="prepare"), None)
    assert status.headlines(before)[1:] == ["reading 3 of 4"] and before["waiting_for"] is None
    assert status.headlines(status.gather(run_dir, None, None))[0].endswith("prepare, process None")
    starting = status.gather(run_dir, snapshot(), None)
    assert "starting" in status.headlines(starting)[1]


def test_status_of_a_run_that_is_over(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = {"event": "run_started", "resumed": False}
    write_events(run_dir, begun, {"event": "run_stopped", "reason": "interrupted", "error": None})
    assert cli.run(["status", str(run_dir)]) == 1
    assert f"go on: make resume RUN={status.short(run_dir)}" in capsys.readouterr().out
    assert cli.run(["status", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "interrupted"
    write_events(run_dir, begun)
    assert status.over(run_dir)["reason"] == "killed"
    write_events(run_dir, begun, {"event": "run_stopped", "reason": "done"})
    (run_dir / "summary.json").write_text('{"steps": 3}')
    assert status.over(run_dir)["summary"] == {"steps": 3}


# ---- resume ----------------------------------------------------------------------------------------------------------


def test_resume_needs_nothing_but_the_run(run_dir: Path) -> None:
    config = resume.reload(run_dir, [])
    assert (config.train.seed, config.cluster.drafters, config.run.dir) == (5, 2, str(run_dir))
    moved = run_dir.rename(run_dir.with_name("moved"))
    other = resume.reload(moved, ["cluster.drafters=3", "target.layer_ids=[1,2]", "data.prompts=null"])
    assert (other.cluster.drafters, other.target.layer_ids, other.data.prompts) == (3, (1, 2), None)
    assert other.run.dir == str(moved)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("train.sed=1", "train.sed: unknown field"),
        ("train.seed.x=1", "train.seed.x: unknown field"),
        ("experiment=smollm2", "experiment: unknown field"),
        ("optim.lr=-1", "optim.lr: "),
        ("optim.lr=1,2", "optim.lr=1,2: one value"),
        ("optim.lr=[", "optim.lr=["),
        ("train.seed=6", "train.seed (was 5, now 6)"),
    ],
)
def test_resume_with_a_wrong_override(run_dir: Path, word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run_dir / "prepared.json").write_text("{}")
    assert cli.run(["resume", str(run_dir), word]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0]


def test_resume_of_what_is_finished_or_no_run(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(run_dir, {"event": "run_started"}, {"event": "run_stopped", "reason": "done"})
    assert cli.run(["resume"]) == 0
    assert "is finished: there is nothing to resume" in capsys.readouterr().out
    assert cli.run(["resume", "runs/none"]) == 2
    (run_dir / "events.jsonl").unlink()
    (run_dir / "config.json").write_text("{")
    assert cli.run(["resume", "runs/latest"]) == 2
    assert "config.json cannot be read" in capsys.readouterr().err
