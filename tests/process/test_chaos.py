"""One run of real processes through aimed faults ends as an undisturbed one does; `make chaos` does it at length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.chaos.plan import chosen, plan
from tests.chaos.session import Session
from tests.chaos.states import CONT, KILL, NOISE, RESTART, STATES, STUCK
from tests.chaos.verdict import wrong

FAULTS = (
    ("drafter.in_reduce", KILL),
    ("coordinator.commit_half_told", KILL),
    ("drafter.commit_heard.coordinator", KILL),
    ("coordinator.line_unwritten", CONT),
    ("target.before_hello to the next coordinator", STUCK),
    ("hostile.anywhere", NOISE),
    ("drafter.mid_copy", CONT),
    ("drafter.torn_save", RESTART),
    ("launcher.anywhere", KILL),
)


@pytest.mark.timeout(900)
def test_aimed_faults_do_not_change_the_result(tmp_path: Path) -> None:
    said: list[str] = []
    session = Session(tmp_path / "chaos", 60, said.append)
    try:
        failed = session.run(0, chosen(0, *FAULTS))
        assert not failed, "\n".join([failed, *said])
        hit = {state for _, state, *_ in session.hits} - {"anywhere"}
        assert hit == {state for state, _ in FAULTS}, "\n".join(said)
    finally:
        session.close()


def ended(folder: Path, packs: list[list[int]], weight: float) -> Path:
    """What a run leaves that the verdict reads."""
    lines = [{"step": i, "packs": p, "loss": 1.0 / (i + 1)} for i, p in enumerate(packs)]
    checkpoint = folder / "checkpoints" / f"step_{len(packs):08d}"
    checkpoint.mkdir(parents=True)
    save_file({"w": torch.tensor([1.0, weight], dtype=torch.float64)}, checkpoint / "drafter.safetensors")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize(
    ("packs", "weight", "says"),
    [
        ([[0, 1, 2, 3], [4, 5, 6, 7]], 2.0, []),
        ([[0, 1, 2, 3], [4, 5, 6, 6]], 2.0, ["not every pack is committed once"]),
        ([[4, 5, 6, 7], [0, 1, 2, 3]], 2.0, ["not every pack is committed once"]),
        ([[0, 1, 2, 3], [4, 5, 6, 7]], 2.0 + 1e-8, ["weights differ"]),
    ],
)
def test_the_verdict_sees_what_is_wrong(tmp_path: Path, packs: list[list[int]], weight: float, says: list[str]) -> None:
    quiet = ended(tmp_path / "quiet", [[0, 1, 2, 3], [4, 5, 6, 7]], 2.0)
    found = wrong(ended(tmp_path / "run", packs, weight), quiet, 2)
    assert len(found) == len(says) and all(part in text for part, text in zip(says, found, strict=True)), found


def test_a_plan_is_a_function_of_its_seed_and_visits_every_state() -> None:
    faults = plan(7, len(STATES))
    assert faults == plan(7, len(STATES)) != plan(8, len(STATES))
    assert {fault.state for fault in faults} == set(STATES)
