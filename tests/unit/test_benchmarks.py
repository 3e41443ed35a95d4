"""The arithmetic of the benchmarks, their result files and their picture: no process, no GPU."""

from __future__ import annotations

import doctest
import importlib
import json
from pathlib import Path

import pytest

from benchmarks import end_to_end, node_parts, plot, results_file, runs, suite
from benchmarks.busy import Seen, by_slope
from benchmarks.chats import write_chats
from dfl_mp.messages import Progress, Status, WorkerLine
from launcher import compose

PURE = ("busy", "allreduce", "growth", "handoff", "node_parts", "suite")


@pytest.mark.parametrize("module", PURE)
def test_examples(module: str) -> None:
    found = doctest.testmod(importlib.import_module(f"benchmarks.{module}"))
    assert found.attempted > 0 and found.failed == 0


def progress(**busy: tuple[int, float]) -> Progress:
    """`drafter_0=(step, busy seconds)`"""
    lines = []
    for name, (step, seconds) in busy.items():
        status = Status(state="working", since_s=0.0, step=step, busy_s=seconds, wait_s=0.0, packs=0)
        lines.append(WorkerLine(worker=f"{name.replace('_', '-')}.1", status=status))
    numbers = {"loss": None, "accept_len_est": None, "tokens_per_s": 0.0, "eta_s": None, "generation": 1}
    return Progress(step=0, num_steps=9, ready_slots=1, num_slots=4, **numbers, workers=tuple(lines))


def test_busy_shares_do_not_depend_on_when_one_looks() -> None:
    """A drafter works 1.8 of every 2 seconds and says so once a step; a target 0.5 of each second, said every second.
    Looking every 0.3 s gives the same shares from any moment on."""
    lines = [{"step_s": 2.0}] * 10
    for phase in (0.0, 0.1, 0.2):
        seen = Seen()
        for i in range(65):
            now = phase + 0.3 * i
            step, second = int(now / 2), int(now)
            seen.add(now, progress(drafter_0=(step, 1.8 * step), target_0=(0, 0.5 * second)))
        found = seen.busy(lines, skip=2, since=4.0)
        assert found["drafter-0"] == pytest.approx(0.9)
        assert found["target-0"] == pytest.approx(0.5, abs=0.01)


def test_a_target_that_never_works_is_idle() -> None:
    still = [(float(second), 0, 3.0) for second in range(9)]
    assert by_slope(still, since=0.0) == 0.0
    assert by_slope(still, since=6.0) is None


@pytest.mark.parametrize("size", sorted(runs.ROW))
def test_runs_are_composed(size: str) -> None:
    """Every override of the runs is known to the config, and the row of the plan is the one that is asked for."""
    place = runs.Place(size)
    try:
        config = compose.load(place.overrides(1, 2, "cache", end_to_end.FAST, "data.anchors_per_row=8"))
        assert (config.cluster.targets, config.cluster.drafters) == (1, 2)
        assert config.data.row_tokens == runs.ROW[size][0] and config.data.anchors_per_row == 8
        assert config.target.load_format == "dummy" and config.target.layer_ids == (0, 1, 2, 3, 4)
        assert config.checkpoint.every_steps == 0 and config.data.prompts is None
    finally:
        place.close()
    assert not place.root.exists()


def test_conversations_are_as_long_as_asked(tmp_path: Path) -> None:
    lines = write_chats(tmp_path / "chats.jsonl", row_tokens=256, num_rows=16).read_text().splitlines()
    letters = sum(len(json.loads(line)["messages"][1]["content"]) for line in lines)
    assert letters == pytest.approx(16 * 256 * 4, rel=0.2)
    assert (tmp_path / "chats.jsonl").stat().st_size < 1 << 20


def test_every_split_uses_the_gpus_there_are() -> None:
    for num_gpus in range(2, 9):
        for targets, drafters in node_parts.splits_of(num_gpus):
            assert targets + drafters == num_gpus or (num_gpus, targets, drafters) == (2, 1, 2)


def test_auto_against_best() -> None:
    found = {(1, 3): {"tokens_per_s": 90.0}, (2, 2): {"tokens_per_s": 100.0}, (3, 1): {"error": "no"}}
    assert node_parts.against_best(found, (1, 3)) == 0.9
    assert node_parts.against_best(found, (3, 1)) is None


def test_what_is_skipped_is_said() -> None:
    chosen, skipped = suite.choose(1)
    assert "allreduce" not in [entry.name for entry, _ in chosen]
    assert skipped == ["allreduce is skipped: it needs 2 GPUs, 1 here"]
    assert [entry.name for entry, _ in suite.choose(8, frozenset({"step"}))[0]] == ["step"]


def test_result_files(tmp_path: Path) -> None:
    file = results_file.ResultFile("node", tmp_path / "node-h200-2026-12-01.json")
    file.add("splits", {"1+1": {"tokens_per_s": 1.0}})
    again = results_file.ResultFile("node", file.path, keep=True)
    again.add("auto_vs_best", 1.0)
    assert json.loads(file.path.read_text())["splits"] == {"1+1": {"tokens_per_s": 1.0}}
    for name in ("node-cpu-2026-12-02", "node-h200-2026-11-30", "node-kills-h200-2026-12-09"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"file": name}))
    newest = results_file.newest("node", folder=tmp_path)
    assert newest is not None and newest["auto_vs_best"] == 1.0
    assert results_file.newest("node", "cpu", tmp_path) == {"file": "node-cpu-2026-12-02"}
    assert results_file.newest("step", folder=tmp_path) is None


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    sides = {"own": {"step_ms": 120.0}, "specforge": {"step_ms": 200.0}}
    step = {"cases": [{"rows": 1, "tokens": 2048, **sides}], "machine": {"gpu": "X"}, "date": "2026-12-01"}
    (tmp_path / "step-x-2026-12-01.json").write_text(json.dumps(step))
    (tmp_path / "handoff-x-2026-12-01.json").write_text(json.dumps({"sizes": [{"error": "no"}]}))
    assert plot.draw(tmp_path, tmp_path / "out.png") == ["step"]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
