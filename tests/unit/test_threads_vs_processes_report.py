"""From journals to a result, and from result files to the page: what is printed is what was noted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.threads_vs_processes.cells import large_cells, small_cells, waves
from benchmarks.threads_vs_processes.findings import findings
from benchmarks.threads_vs_processes.groups import Group
from benchmarks.threads_vs_processes.report import BEGIN, END, main
from benchmarks.threads_vs_processes.results import command
from benchmarks.threads_vs_processes.summary import summarise

FX_ERROR = "RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function"


def step(time: float, loss: float, graphs: int = 2) -> dict[str, Any]:
    return {"event": "step", "time": time, "loss": loss, "tokens": 100, "graphs": graphs}


def journal(shift: float, losses: list[float]) -> list[dict[str, Any]]:
    """Two steps of warm-up, the gate at 20, then a step a second."""
    timed = [step(20 + shift + i, loss) for i, loss in enumerate(losses[2:])]
    return [step(10, losses[0], 1), step(10.1, losses[1]), {"event": "go", "time": 20.0}, *timed]


def cell(name: str, **fields: Any) -> dict[str, Any]:
    how = name.split()[0]
    settings = {"workaround": "none", "cache": "cold", "lengths": "fixed", "checkpoint": "off", "mask": "direct"}
    journals = {i: journal(0.25 * i, [4.0, 3.0, 2.0, 1.5, 1.25]) for i in range(1 if how == "alone" else 3)}
    summary = summarise(journals, 4.0, [4.0, 3.0, 2.0, 1.5, 1.25], apart=how == "processes")
    memory = {"gpu_used_mb": 1234, "host_mb": 9000, "host_own_mb": 5678, "helpers": 3}
    return {"name": name, "how": how, "hangs": False, **settings, **summary, "memory": memory, "at_once": 4} | fields


def test_a_rate_counts_timed_steps_in_which_all_were_training_and_a_failure_is_counted_with_its_error() -> None:
    journals = {0: journal(0.0, [4.0, 3.0, 2.0, 1.5, 1.0]), 1: journal(0.5, [4.0, 3.0, 2.0, 1.5, 1.1])}
    journals[1].append({"event": "failed", "time": 30.0, "step": 5, "error": FX_ERROR, "graphs": 3})
    found = summarise(journals, 0.0, [4.0, 3.0, 2.0, 1.5, 1.0], apart=False)
    # From 20.5, the later one's first, to 22, the earlier one's last: two steps of 100 tokens and one, in 1.5 s.
    assert found["tokens_per_s_each"] == [133, 67] and found["tokens_per_s"] == 200
    assert (found["steps"], found["failed_steps"], found["errors"]) == (10, 1, {FX_ERROR: 1})
    assert (found["graphs"], found["recompiles"]) == (3, 2)
    assert (found["loss"]["compared_steps"], found["loss"]["bitwise_equal"]) == (10, 9)
    assert found["loss"]["largest_relative_deviation"] == pytest.approx(0.1)


def test_the_page_says_what_the_files_say(tmp_path: Path) -> None:
    failing = {"failed_steps": 5, "errors": {FX_ERROR: 5}, "attention": "block-sparse"}
    cells = [cell("alone"), cell("threads", **failing), cell("processes"), cell("threads flag_false", beside=2)]
    run = {"what": "python -m x", "size": "small", "gpus": 1, "device": "GPU", "torch": "2.11", "cells": cells}
    run["per_process"] = {"fx tracing flag": True, "is_compiling during a compile": None}
    older = {**run, "what": "python -m y", "cells": [cell("alone", steps=777)]}
    result, doc = tmp_path / "a.json", tmp_path / "page.md"
    result.write_text(json.dumps({"date": "2026-12-01", "runs": [older, run]}))
    doc.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    main(["--results", str(result), "--doc", str(doc)])
    page = doc.read_text()
    assert page.startswith("before\n") and page.endswith("\nafter\n") and "old" not in page and "777" not in page
    lines = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("| ")}
    assert lines["fx tracing flag"] == "| fx tracing flag | seen by all threads |"
    assert "not set by a compile" in lines["is_compiling during a compile"]
    assert "| 5 | 0 | 100 | 100 % | 6 (4 at once) | 1 |" in lines["alone"]
    assert "| 15 | 5 (25 %): RuntimeError: Detected that you are using FX" in lines["threads"]
    assert "| block-sparse | equal in 15 | 1,234 | 5,678 |" in lines["threads"] and f"threads: 5 × {FX_ERROR}" in page
    assert "| 15 | 0 | 267 | 67–133 % |" in lines["processes"]
    assert "| 15 | 0 | – | – |" in lines["threads flag_false"]


def test_sentences_follow_from_the_figures() -> None:
    group = Group("GPU", 1, "small", "2.11")
    forced = {"tokens_per_s": 90, "tokens_per_s_each": [30, 30, 30]}
    bigger = {"memory": {"gpu_used_mb": 2234, "host_mb": 1, "host_own_mb": 5700, "helpers": 0}}
    group.cells = [cell("threads", failed_steps=5), cell("processes", **bigger), cell("threads flag_false", **forced)]
    said = findings(group)
    assert said[0] == "Threads: 5 of 35 steps failed in 2 cells, all of them in `threads`."
    assert said[1] == "Processes: 0 of 15 steps failed in 1 cell."
    assert said[2] == "`threads` trained at 100 % of the rate of `processes`."
    assert said[3] == "`processes` took 1,000 MB of GPU memory and 22 MB of host memory more than `threads`."
    assert said[4].startswith("`threads flag_false` trained at 34 %") and said[4].endswith("is seen here.")
    group.cells[2] |= {"tokens_per_s": 200}
    assert findings(group)[4].endswith("is not reproduced here.")
    assert findings(Group("GPU", 1, "small", "2.11")) == []


def test_a_page_without_its_markers_is_refused_and_left_alone(tmp_path: Path) -> None:
    doc, result = tmp_path / "page.md", tmp_path / "a.json"
    doc.write_text(f"{END} {BEGIN}")
    result.write_text(json.dumps({"date": "2026-12-01", "runs": []}))
    with pytest.raises(SystemExit, match=r"page\.md: needs one line"):
        main(["--results", str(result), "--doc", str(doc)])
    assert doc.read_text() == f"{END} {BEGIN}"


def test_waves_keep_the_order_and_a_warm_cell_comes_after_the_one_that_fills_its_cache() -> None:
    for cells in (small_cells(500, 100), large_cells(50)):
        assert len({c.name for c in cells}) == len(cells)
        found = waves(cells, 8)
        assert [c for wave in found for c in wave] == cells
        assert all(len(wave) <= 8 and len({c.cache for c in wave}) == 1 for wave in found)
        for i, wave in enumerate(found):
            filled = {c.kin for before in found[:i] for c in before if c.how == "alone" and c.cache == "cold"}
            assert all(c.kin in filled for c in wave if c.cache == "warm")


def test_a_command_is_kept_without_the_place_of_its_file() -> None:
    assert command(["--short", "9", "--out", "/tmp/x"]).endswith("threads_vs_processes --short 9")
