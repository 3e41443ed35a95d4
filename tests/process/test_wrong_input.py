"""Input that only `prepare` finds to be wrong: one line, exit 2, and no trace of the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from launcher.compose import REPO
from tests.process.launches import launched, processes

DETACHED = """
import sys
from launcher import __main__ as cli
sys.exit(cli.run(["train", "--detach", *sys.argv[1:]]))
"""


def test_nothing_is_left(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "first"
    with launched(run_dir, "refuse") as launch:
        assert launch.wait() == 2
        assert launch.err == "error: data.path: line 3 is no conversation\n"
    assert list(tmp_path.iterdir()) == [] and processes(run_dir) == []


def test_a_run_that_exists_stays(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with launched(run_dir, "long") as launch:
        launch.pid_of("drafter-1")
        launch.process.kill()
        launch.wait()
    with launched(run_dir, "refuse") as launch:
        assert launch.wait() == 2
    assert (run_dir / "prepared.json").exists() and (run_dir / "metrics.jsonl").exists()


def test_detached_it_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text("no JSON\n")
    command = [sys.executable, "-c", DETACHED, f"run.dir={tmp_path / 'run'}", f"data.path={tmp_path / 'chats.jsonl'}"]
    environment = dict(os.environ, PYTHONPATH=str(REPO), CUDA_VISIBLE_DEVICES="", DFL_CACHE=str(tmp_path / "cache"))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2, done.stdout + done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error: data.path: ")]
    assert not (tmp_path / "run").exists()
