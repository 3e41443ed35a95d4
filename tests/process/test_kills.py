"""A run in which every kind of worker is killed ends with the weights of a run in which none was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dfl_mp.log import read_lines
from launcher.compose import REPO
from tests.process.tiny_run import write_inputs

pytestmark = pytest.mark.timeout(900)
STEPS = 240
KILLS = (("drafter-1", 20), ("coordinator", 60), ("target-0", 100), ("drafter-0", 140))


def start(run_dir: Path, inputs: list[str], *overrides: str) -> subprocess.Popen[str]:
    options = [f"train.max_steps={STEPS}", "data.prompts=null", "checkpoint.every_steps=50", *overrides]
    command = [sys.executable, "-m", "launcher", "train", f"run.dir={run_dir}", *inputs, *options]
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1")
    return subprocess.Popen(
        command, cwd=REPO, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen[str], within: float = 600.0) -> None:
    out, _ = process.communicate(timeout=within)
    assert process.returncode == 0, out


def kill_when(run_dir: Path, process: subprocess.Popen[str], worker: str, step: int) -> None:
    """SIGKILL the newest process of the worker once so many steps are committed."""
    end = time.monotonic() + 300
    while len(read_lines(run_dir / "metrics.jsonl")) < step:
        assert process.poll() is None and time.monotonic() < end, f"step {step} did not come"
        time.sleep(0.01)
    started = [e for e in read_lines(run_dir / "events.jsonl") if e["event"] == "worker_started"]
    os.kill([e["pid"] for e in started if e["worker"] == worker][-1], signal.SIGKILL)


def weights(run_dir: Path) -> torch.Tensor:
    tensors = load_file(run_dir / "checkpoints" / f"step_{STEPS:08d}" / "drafter.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def test_kills_do_not_change_the_result(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path)
    quiet = start(tmp_path / "quiet", inputs, "cluster.drafters=1")
    finish(quiet)
    run_dir = tmp_path / "killed"
    killed = start(run_dir, inputs, "cluster.drafters=2", "cluster.slots_per_target=1")
    try:
        for worker, step in KILLS:
            kill_when(run_dir, killed, worker, step)
        finish(killed)
    finally:
        killed.kill()
    lines = read_lines(run_dir / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(STEPS))
    assert [n for line in lines for n in line["packs"]] == list(range(4 * STEPS)), "every pack once, in order"
    restarted = {e["worker"] for e in read_lines(run_dir / "events.jsonl") if e["event"] == "worker_restarted"}
    assert restarted == {worker for worker, _ in KILLS}
    torch.testing.assert_close(weights(run_dir), weights(tmp_path / "quiet"), rtol=0, atol=1e-9)
