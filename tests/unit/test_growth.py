"""What a growing step is judged by, and one case measured on a CPU; no time decides."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import growth, plot
from benchmarks.growth import Case, Sweep
from benchmarks.results_file import ResultFile
from benchmarks.shapes import drafter_spec, random_pack, useful_flop, useful_parts
from dfl_mp.model.drafter import Drafter


def measured(documents: int, work: float, ms: float) -> dict[str, Any]:
    return {"documents": documents, "useful_tflop": work, "forward_backward_ms": ms}


def test_every_sweep_has_what_was_asked_for() -> None:
    assert {min(s.cases).tokens for s in growth.SWEEPS.values()} == {1024, 8192}
    ends = {name: {getattr(c, s.swept) for c in s.cases[:2]} for name, s in growth.SWEEPS.items()}
    assert ends["row_tokens"] == ends["row_tokens_and_anchors"] == {1024, 32768}
    assert ends["anchors"] == {64, 2048} and ends["documents"] == {1, 64}
    cases = growth.order(growth.SWEEPS.values())
    assert len(set(cases)) == len(cases) == 21 and set(cases) == {c for s in growth.SWEEPS.values() for c in s.cases}


def test_less_work_at_the_same_time_is_growth() -> None:
    """64 documents that see a tenth less and take as long are dearer by a ninth."""
    found = growth.growth("documents", [measured(64, 0.9, 10.0), measured(1, 1.0, 10.0)], fixed_ms=0.5)
    assert found["growth"] == pytest.approx(1.111, abs=1e-3) and not found["linear"]


def test_one_dear_step_on_a_cheap_way_is_found() -> None:
    cases = [measured(1, 1.0, 10.0), measured(2, 2.0, 15.0), measured(4, 4.0, 36.0), measured(8, 8.0, 64.0)]
    found = growth.growth("documents", cases, fixed_ms=1.0)
    assert (found["worst_growth"], found["worst_at"], found["growth"]) == (1.2, [2, 4], 0.8)
    assert not found["linear"]


def test_launches_do_not_hide_growth() -> None:
    """A first case that is mostly launches would make all that follows look cheap."""
    cases = [measured(1, 0.1, 5.0), measured(2, 2.0, 20.0), measured(4, 4.0, 60.0), {"documents": 8, "error": "no"}]
    found = growth.growth("documents", cases, fixed_ms=4.0)
    assert found["judged"] == [2, 4] and found["growth"] == 1.5


def test_the_law_finds_fixed_time_and_rates() -> None:
    cases = []
    for i in range(1, 9):
        work = {"products": 1.0 * i, "head": 2.0 + i % 3, "attention": 0.1 * i * i}
        ms = 3.0 + 2.0 * work["products"] + 1.0 * work["head"] + 4.0 * work["attention"]
        cases.append({"tflop": work, "forward_backward_ms": ms})
    law = growth.linear_law(cases)
    assert law == {
        "fixed_ms": pytest.approx(3.0),
        "products_tflops": 500.0,
        "head_tflops": 1000.0,
        "attention_tflops": 250.0,
        "worst_over": 1.0,
    }
    assert growth.linear_law(cases[:5]) == {}


def test_documents_see_less_and_nothing_else_changes() -> None:
    spec = drafter_spec("tiny", 1)
    one, eight = (useful_parts(spec, random_pack(1, 512, 32, 4096, n), 4096) for n in (1, 8))
    assert (one["products"], one["head"]) == (eight["products"], eight["head"])
    assert one["attention"] > 4 * eight["attention"]


def test_products_are_those_that_the_matrices_take_part_in() -> None:
    """Each matrix works on positions: all tokens, all slots, or in the last layer all but slot 0."""
    spec, pack = drafter_spec("tiny", 2), random_pack(1, 256, 16, 4096)
    with torch.device("meta"):
        drafter = Drafter(spec)
    tokens, slots = 256, 16 * spec.block_size
    flop = 2 * 2 * tokens * drafter.fc.weight.numel()
    for layer, queries in zip(drafter.layers, (slots, slots - 16), strict=True):
        for name, weight in layer.named_parameters():
            if weight.ndim == 2:
                flop += 3 * 2 * weight.numel() * (tokens + slots if "k_proj" in name or "v_proj" in name else queries)
    parts = useful_parts(spec, pack, 4096)
    assert parts["products"] == flop and useful_flop(spec, pack, 4096) == sum(parts.values())


def test_a_sweep_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the cases to the result file, the verdict and the picture; a case that cannot be made is said."""
    torch.set_num_threads(1)
    sweeps = {
        "anchors": Sweep("anchors", (Case(64, 2), Case(64, 4))),
        "documents": Sweep("documents", (Case(64, 4), Case(64, 4, 64))),
    }
    options = argparse.Namespace(size="tiny", shrink=32, steps=3, seconds=100.0)
    growth.run(sweeps, options, ResultFile("growth", tmp_path / "growth-cpu-2026-12-01.json"))
    found = json.loads((tmp_path / "growth-cpu-2026-12-01.json").read_text())
    cases = found["anchors"]["cases"]
    verdict = growth.growth("anchors", cases, found["hardly_any"]["forward_backward_ms"])
    assert [c["anchors"] for c in cases] == [2, 4] and verdict.items() <= found["anchors"].items()
    assert all(c["loss"][0] > 0 and c["attention"] == "dense" for c in cases)
    assert "error" in found["documents"]["cases"][1] and "growth" not in found["documents"]
    assert "4 of 4 cases" in capsys.readouterr().out and found["left_out"] == []
    pytest.importorskip("matplotlib")
    assert plot.draw(tmp_path, tmp_path / "out.png") == ["growth"]
