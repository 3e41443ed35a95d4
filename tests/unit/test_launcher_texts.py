"""Lines of a launch that tell people what to do or to expect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dfl_mp.data.summary import describe
from dfl_mp.errors import ConfigError
from launcher import compose, train
from launcher.child import Child, Lifeline, Surroundings, spawn
from launcher.console import Console
from launcher.detach import farewell
from launcher.run_dir import RunDir, open_run

ONE = {"path": "one.jsonl", "trained_share": 1.0, "rows": {"skipped": {}, "lines": 1, "first": []}}
COUNTS = "documents tokens trained_turns cut_documents cut_tokens turns_without_end rows_in_run packs steps eligible"
SHARES = "fill documents_per_row epochs slots_used dropped_by_max_anchors_per_document dropped_by_anchors_per_row"


@pytest.mark.parametrize("count", [1, 2])
def test_one_of_a_thing_is_singular(count: int) -> None:
    report = {**ONE, **dict.fromkeys(COUNTS.split(), count), **dict.fromkeys(SHARES.split(), 1.0)}
    prompts = {"lines": count, "kept": count, "skipped": {}}
    said = "; ".join(describe({**report, "anchors_per_row": count, "mask_token": "x", "prompts": prompts}))
    for noun in ("document", "token", "turn", "answer", "row", "pack", "step", "prompt", "anchor slot"):
        assert (f"{count} {noun}s" in said) == (count == 2), noun
        assert f"{count} {noun}" in said, noun


def test_another_mathematics_says_how_to_go_on(tmp_path: Path) -> None:
    here = f"run.dir={tmp_path / 'r'}"
    open_run(compose.load([here, "train.seed=5"]))[0].close()
    (tmp_path / "r" / "prepared.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"train\.seed \(was 5, now 0\); .*make resume RUN=\S+/r, or repeat"):
        open_run(compose.load([here]))


@pytest.mark.parametrize(
    ("steps", "saved", "says"),
    [
        (0, None, ""),
        (1, None, " from the beginning, 1 step lost (no checkpoint yet: checkpoint.every_steps=7)"),
        (9, 9, " from the checkpoint of step 9"),
        (9, 7, " from the checkpoint of step 7, 2 later steps lost"),
    ],
)
def test_a_resume_says_what_is_lost(tmp_path: Path, steps: int, saved: int | None, says: str) -> None:
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"step": i}) + "\n" for i in range(steps)))
    if saved is not None:
        (tmp_path / "checkpoints" / f"step_{saved:08}").mkdir(parents=True)
    config = compose.load(["checkpoint.every_steps=7"])
    assert train._from_where(RunDir(tmp_path, True, -1), config) == says


def test_a_process_that_has_said_nothing_is_loading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lifeline = Lifeline()
    child: Child = spawn("this", [], ("evaluator", 1, tmp_path), Surroundings(None, 1, lifeline))
    child.process.kill(), child.reap(), lifeline.close()
    child.log.write_text("\n")
    console = Console(tmp_path, every_s=0.0)
    console.waiting(child)
    child.log.write_text("exported\n\n")
    console.waiting(child)
    assert capsys.readouterr().out == "evaluator, loading\nexported\n"


def test_a_detached_run_is_stopped_by_a_command(tmp_path: Path) -> None:
    assert farewell(tmp_path, 7)[2] == f"stop        make stop RUN={tmp_path}"
