"""Whole runs with the real roles as processes: tiny honest models, float64, equal weights at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dfl_mp.log import read_lines
from launcher.compose import REPO
from tests.process.tiny_run import write_inputs

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


def train(run_dir: Path, *overrides: str, within: float = 600.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launcher", "train", f"run.dir={run_dir}", *overrides]
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1")
    return subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, timeout=within)


def weights(run_dir: Path) -> torch.Tensor:
    tensors = load_file(run_dir / "checkpoints" / "step_00000006" / "drafter.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def test_one_and_three_drafters_end_with_the_same_weights(inputs: list[str], tmp_path: Path) -> None:
    found = []
    for drafters in (1, 3):
        run_dir = tmp_path / str(drafters)
        prompts = [] if drafters == 3 else ["data.prompts=null"]
        done = train(run_dir, *inputs, f"cluster.drafters={drafters}", *prompts)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = read_lines(run_dir / "metrics.jsonl")
        assert [line["step"] for line in lines] == list(range(6))
        assert [n for line in lines for n in line["packs"]] == list(range(24))
        assert {line["drafters"] for line in lines} == {drafters}
        assert lines[-1]["loss"] < lines[0]["loss"]
        found.append(weights(run_dir))
    assert found[0].dtype == torch.float64
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-9)
    _check_what_a_run_leaves(tmp_path / "3")


def _check_what_a_run_leaves(run_dir: Path) -> None:
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["steps"] == 6 and summary["greedy_identical"] == 1.0
    assert summary["tau_mean"] >= 1.0 and summary["tau_untrained"] >= 1.0
    assert (run_dir / "export" / "model.safetensors").exists()
    events = [e["event"] for e in read_lines(run_dir / "events.jsonl")]
    assert events.count("worker_started") == 7, "prepare, coordinator, target, 3 drafters, evaluator"
    assert "transport_proved" in events and "checkpoint_saved" in events and "generation" in events


def test_one_slot_and_many_targets_train_the_same(inputs: list[str], tmp_path: Path) -> None:
    options = ["data.prompts=null", "cluster.drafters=1", "train.max_steps=2", "train.packs_per_step=4"]
    losses = []
    for name, more in (("one", ["cluster.slots_per_target=1"]), ("two", ["cluster.targets=2"])):
        done = train(tmp_path / name, *inputs, *options, *more)
        assert done.returncode == 0, done.stdout + done.stderr
        losses.append([line["loss"] for line in read_lines(tmp_path / name / "metrics.jsonl")])
    assert losses[0] == pytest.approx(losses[1], abs=1e-9)


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("target.path=/no/such/model", "target.path"),
        ("target.layer_ids=[1,99]", "target.layer_ids"),
        ("drafter.mask_token_id=100000", "drafter.mask_token_id"),
        ("data.path=/no/such/file.jsonl", "data.path"),
    ],
)
def test_wrong_input_is_one_line_that_names_it(inputs: list[str], tmp_path: Path, override: str, names: str) -> None:
    done = train(tmp_path / "run", *inputs, override)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(errors) == 1 and errors[0].startswith("error: ") and names in errors[0]
    assert "Traceback" not in done.stdout + done.stderr


def test_a_worker_that_fails_to_start_shows_its_own_traceback(inputs: list[str], tmp_path: Path) -> None:
    target = next(word.split("=")[1] for word in inputs if word.startswith("target.path="))
    broken = tmp_path / "target"
    broken.mkdir()
    for file in Path(target).iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    (broken / "model.safetensors").write_bytes(b"not a model")
    done = train(tmp_path / "run", *inputs, f"target.path={broken}", "cluster.drafters=1")
    assert done.returncode in (1, 2)
    assert "target.path" in done.stderr or "Traceback" in done.stdout + done.stderr
