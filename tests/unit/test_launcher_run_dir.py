"""The run's folder and the lines for people."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dfl_mp.errors import ConfigError
from dfl_mp.messages import TRANSPORT, Progress, Status, WorkerLine
from launcher import compose
from launcher.plain import data_wait, progress_line
from launcher.run_dir import first_incarnation, open_run
from launcher.summary import ending, last_lines, summarize
from launcher.words import clock, thousands


def test_default_folder_is_private_and_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = compose.load([])
    first, written = open_run(config)
    first.accept()
    second, _ = open_run(config)
    assert first.path != second.path and first.path.name.endswith("-quickstart")
    assert (tmp_path / "runs" / "latest").resolve() == second.path, "orders reach it while it is prepared"
    second.discard()
    assert (tmp_path / "runs" / "latest").resolve() == first.path, "its input was wrong"
    assert first.path.stat().st_mode & 0o777 == 0o700
    assert json.loads((first.path / "config.json").read_text()) == written.model_dump(mode="json")
    assert not first.resumed and written.run.dir == str(first.path)
    first.close(), second.close()


def test_wrong_input_leaves_nothing_that_was_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for overrides in ([], [f"run.dir={tmp_path / 'a' / 'b' / 'c'}"]):
        run, _ = open_run(compose.load(overrides))
        run.discard(), run.close()
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    run, _ = open_run(compose.load(["run.dir=empty"]))
    run.discard(), run.close()
    assert (tmp_path / "empty").is_dir()


def test_an_accepted_run_and_an_old_one_stay(tmp_path: Path) -> None:
    config = compose.load([f"run.dir={tmp_path / 'r'}"])
    run, _ = open_run(config)
    run.accept(), run.discard(), run.close()
    assert (tmp_path / "r" / "config.json").exists()
    again, _ = open_run(config)
    again.discard(), again.close()
    assert (tmp_path / "r" / "config.json").exists()


def test_each_launch_tries_cuda_ipc_again(tmp_path: Path) -> None:
    config = compose.load([f"run.dir={tmp_path / 'r'}"])
    run, _ = open_run(config)
    run.accept(), run.close()
    (run.path / TRANSPORT).write_text("{}")
    again, _ = open_run(config)
    again.close()
    assert not (run.path / TRANSPORT).exists()


def test_other_mathematics_is_refused_by_field_name(tmp_path: Path) -> None:
    here = f"run.dir={tmp_path / 'r'}"
    run, _ = open_run(compose.load([here]))
    run.close()
    open_run(compose.load([here, "train.seed=5"]))[0].close()  # nothing was prepared: nothing to contradict
    (tmp_path / "r" / "prepared.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"train\.loss\.name \(was 'dflash', now 'dpace'\).*train\.seed"):
        open_run(compose.load([here, "train.loss.name=dpace"]))
    run, _ = open_run(compose.load([here, "train.seed=5", "cluster.drafters=1", "data.cache_dir=elsewhere"]))
    assert run.resumed
    run.close()


def test_folder_in_use(tmp_path: Path) -> None:
    config = compose.load([f"run.dir={tmp_path / 'r'}"])
    run, _ = open_run(config)
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
        open_run(config)
    run.close()
    open_run(config)[0].close()


def test_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("full", "file", "open", "file/below"):
        with pytest.raises(ConfigError, match=r"run\.dir"):
            open_run(compose.load([f"run.dir={tmp_path / name}"]))
    with pytest.raises(ConfigError, match=r"run\.dir: is empty"):
        open_run(compose.load(["run.dir="]))


def test_runs_that_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").touch()
    with pytest.raises(ConfigError, match=rf"run\.dir: no folder can be made in {tmp_path}/runs: "):
        open_run(compose.load([]))


def test_incarnations_are_never_used_twice(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    assert first_incarnation(tmp_path) == 1
    (tmp_path / "logs" / "drafter-0.9.log").touch()
    (tmp_path / "logs" / "drafter-1.10.log").touch()
    assert first_incarnation(tmp_path) == 11


def progress(step: int, busy: float, wait: float) -> Progress:
    status = Status(state="working", since_s=0.0, step=step, busy_s=busy, wait_s=wait, packs=0)
    idle = status.model_copy(update={"state": "idle", "wait_s": 1e6})
    workers = (WorkerLine(worker="drafter-0.1", status=status), WorkerLine(worker="target-0.2", status=idle))
    numbers = {"loss": 3.21, "accept_len_est": 1.84, "tokens_per_s": 18_200.0, "eta_s": 102.0}
    return Progress(step=step, num_steps=1500, ready_slots=3, num_slots=4, generation=1, workers=workers, **numbers)


def test_progress_line() -> None:
    old, new = progress(60, 10.0, 50.0), progress(120, 107.0, 53.0)
    assert progress_line(new, old) == (
        "step 120/1500  loss 3.210  accept_len_est 1.84  18.2K tok/s  data wait 3%  ready 3/4  ETA 1:42  "
        "drafter-0 working · target-0 idle"
    )
    assert data_wait(progress(0, 0.0, 0.0), None) is None
    assert (clock(7383.0), thousands(950.0), thousands(1.34e6)) == ("2:03:03", "950", "1.3M")


def test_summary_of_a_run_without_prompts(tmp_path: Path) -> None:
    lines = [{"step": i, "loss": 9.0 - i, "tokens": 100.0, "step_s": 0.5} for i in range(3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = summarize(tmp_path, compose.load(["data.prompts=null"]), seconds=2.0)
    assert (found["steps"], found["tokens"], found["tokens_per_s"], found["loss"]) == (3, 300.0, 200.0, 7.0)
    assert found["tau_mean"] is None and found["prompts"] is None and found["export"] is None
    text = "\n".join(last_lines(ending(tmp_path)))
    assert "9.000 -> 7.000" in text and "acceptance" not in text
