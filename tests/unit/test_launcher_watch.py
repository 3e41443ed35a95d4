"""What people read of compiling, of a slower run and of busy shares."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dfl_mp.messages import Progress, Status, WorkerLine
from dfl_mp.pace import Drop
from launcher import compose, status
from launcher.happenings import in_words
from launcher.plain import starting_line
from launcher.screen import frame
from launcher.snapshot import Snapshot, Worker, doing_of
from launcher.summary import summarize
from launcher.tail import Scene

NOTE = "waits for drafter-0 to compile"


def worker_status(state: str, since_s: float, note: str = "") -> Status:
    return Status(state=state, since_s=since_s, step=0, busy_s=0.0, wait_s=0.0, packs=0, note=note)  # type: ignore[arg-type]


def snapshot() -> Snapshot:
    said = {
        "target-0": worker_status("idle", 3.0),
        "drafter-0": worker_status("compiling", 23.4),
        "drafter-1": worker_status("compiling", 12.0, NOTE),
    }
    slots = {"ready_slots": 0, "num_slots": 4, "drafter_busy": 0.974, "target_busy": 0.5}
    progress = Progress(
        **{"step": 0, "num_steps": 9, "loss": None, "accept_len_est": None, "tokens_per_s": 0.0, "eta_s": None},
        **slots,
        generation=0,
        workers=tuple(WorkerLine(worker=f"{name}.1", status=said[name]) for name in said),
    )
    workers = tuple(Worker(name=name, id=f"{name}.1", state="starting") for name in said)
    return Snapshot(time=30.0, began=0.0, pid=1, phase="train", workers=workers, progress=progress)


def test_who_compiles_and_who_waits_for_it() -> None:
    seen = snapshot()
    assert [doing_of(w, seen.progress) for w in seen.workers] == ["idle", "compiling, 23 s", f"{NOTE}, 12 s"]
    line = f"starting, 30 s  target-0 idle · drafter-0 compiling, 23 s · drafter-1 {NOTE}, 12 s"
    assert starting_line(seen) == line
    screen = frame(Scene("runs/x", seen, {}, (), (), ()), 80, 24).plain
    assert "drafter-0       compiling, 23 s" in screen and f"drafter-1       {NOTE}, 12 s" in screen


def test_status_tells_it_too(tmp_path: Path) -> None:
    seen = status.gather(tmp_path, snapshot(), None)
    assert [row["state"] for row in seen["workers"]] == ["idle", "compiling", NOTE]
    assert status.headlines(seen)[-1] == ("busy: drafters 97%, targets 50% (since the coordinator's first step)")


def test_events() -> None:
    drop = Drop(before_s=1.0, now_s=5.0, waiting=0.8, cause="drafters wait for features 80% of the time")
    event = {"time": 0.0, "event": "rate_dropped", "worker": "coordinator", "step": 7, **dataclasses.asdict(drop)}
    told = in_words(event)
    assert told == ("the rate fell to 20%, 5.00 s a step: drafters wait for features 80% of the time", "red")
    event = {"time": 0.0, "event": "recompile", "worker": "coordinator", "drafter": "drafter-1.2", "graphs": 2}
    assert in_words(event) == ("drafter-1 compiled 2 graphs again", "red")
    assert in_words(event | {"reason": "f: size"}) == ("drafter-1 compiled 2 graphs again: f: size", "red")


def test_summary_has_the_busy_shares(tmp_path: Path) -> None:
    config = compose.load([])
    (tmp_path / "logs").mkdir()
    assert summarize(tmp_path, config, 1.0)["drafter_busy"] is None
    snapshot().write(tmp_path)
    summary = summarize(tmp_path, config, 1.0)
    assert summary["drafter_busy"] == pytest.approx(0.974) and summary["target_busy"] == 0.5
