"""The ledger on disk, and what a power loss may leave of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dfl_mp import messages as m
from dfl_mp.log import read_lines
from dfl_mp.messages import Statistics
from dfl_mp.protocol import effects as e
from dfl_mp.protocol.coordinator import Coordinator
from dfl_mp.protocol.drafter import Drafter
from dfl_mp.protocol.scheduler import Shape
from dfl_mp.roles.ledger import Ledger

DRAFTER = "drafter-0.1"


def line(step: int) -> e.AppendLedger:
    statistics = Statistics(
        loss=1.0,
        lr=1e-3,
        grad_norm=1.0,
        tokens=8.0,
        trained_tokens=4.0,
        accept_len_est=1.0,
        data_wait_s=0.0,
        skipped=False,
    )
    return e.AppendLedger(step, (2 * step, 2 * step + 1), statistics, drafters=1, generation=1)


def left_behind(folder: Path, lines: int, *checkpoints: int) -> Path:
    """A run folder with a ledger of so many lines, and checkpoints."""
    ledger = Ledger(folder, keep=9)
    for step in range(lines):
        ledger.append(line(step))
    for steps in checkpoints:
        private = folder / "checkpoints" / f".private-{DRAFTER}-{steps}"
        private.mkdir()
        ledger.publish(steps, private.name)
    return folder


def test_a_checkpoint_beyond_the_ledger_does_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run goes on from the newest that the ledger knows, and can be started again after that."""
    ledger = Ledger(left_behind(tmp_path, 3, 2, 3, 5), keep=9)
    disk = ledger.load()
    assert (disk.ledger, disk.checkpoints) == (3, {2, 3})
    assert "3 lines; the checkpoint of step 5 is beyond them" in capsys.readouterr().err

    machine = Coordinator(Shape(2, 8), disk)
    out = machine.handle(m.LAUNCHER, m.Alive(workers=(DRAFTER,)))
    drafter = Drafter(per_step=2)
    drafter.warmed()
    out += machine.handle(DRAFTER, drafter.hello())
    [form] = [x.message for x in out if isinstance(x, e.Send) and isinstance(x.message, m.Form)]
    [cut] = [x for x in out if isinstance(x, e.CutLedger)]
    assert (form.load, cut.steps) == (3, 3)
    ledger.cut(cut.steps)
    ledger.append(line(3))
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step_00000002", "step_00000003"]
    again = Ledger(tmp_path, keep=9).load()
    assert (again.ledger, again.checkpoints) == (4, {2, 3})


def test_a_ledger_that_lost_its_tail_is_whole_again(tmp_path: Path) -> None:
    path = left_behind(tmp_path, 4) / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-7])
    Ledger(tmp_path, keep=9).append(line(3))
    assert [found["step"] for found in read_lines(path)] == [0, 1, 2, 3]


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names under which files and folders were put on disk, as they are at that moment."""
    names: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    return names


def test_what_replaces_the_ledger_is_on_disk_first_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power loss leaves an empty ledger beside a checkpoint."""
    ledger = Ledger(left_behind(tmp_path, 3), keep=9)
    names = synced(monkeypatch)
    ledger.cut(2)
    assert names == [".metrics.part", tmp_path.name]
    names.clear()
    ledger.persist(7, {3})
    assert names == [f".state.json.{os.getpid()}", tmp_path.name]
