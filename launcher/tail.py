"""Follows what a run writes: new lines of its files, and what has changed since earlier moments."""

from __future__ import annotations

import json
import shlex
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfl_mp.messages import Status
from launcher.snapshot import Snapshot

RATE_OVER_S = 10.0
SHORTEST_S = 3.0
"""Workers speak once a second: over less than a few of them a rate is an accident."""
EVENTS_KEPT = 200


class Tail:
    """The whole lines that a file of JSON lines has gained; after a rewrite all of them again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = self._inode = 0

    def new(self) -> tuple[bool, list[dict[str, Any]]]:
        """(whether it begins anew, the new records)."""
        if not self._path.exists():
            return False, []
        with self._path.open("rb") as file:
            info = self._path.stat()
            again = info.st_ino != self._inode or info.st_size < self._at
            self._at, self._inode = 0 if again else self._at, info.st_ino
            file.seek(self._at)
            whole, _, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + 1 if whole else 0
        return again, [json.loads(line) for line in whole.splitlines()]


@dataclass(frozen=True)
class Rate:
    """A worker over the last seconds. `waiting` is its share of the time in which it computed or waited."""

    packs_per_s: float
    waiting: float


@dataclass(frozen=True)
class Scene:
    """All that one frame shows."""

    run: str
    """The run's folder, as short as it can be named."""
    snapshot: Snapshot
    rates: dict[str, Rate]
    """By worker id."""
    loss: tuple[float, ...]
    """Of every step whose loss is finite; `accept` likewise."""
    accept: tuple[float, ...]
    events: tuple[dict[str, Any], ...]


class Follower:
    """Turns snapshots into scenes of one run."""

    def __init__(self, run_dir: Path) -> None:
        self._run = short(run_dir)
        self._metrics, self._noted = Tail(run_dir / "metrics.jsonl"), Tail(run_dir / "events.jsonl")
        self._loss: list[float] = []
        self._accept: list[float] = []
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self._past: deque[tuple[float, dict[str, Status]]] = deque()

    def scene(self, snapshot: Snapshot) -> Scene:
        """What there is to see now. Reads the files' new lines."""
        again, lines = self._metrics.new()
        if again:
            self._loss, self._accept = [], []
        for field, series in (("loss", self._loss), ("accept_len_est", self._accept)):
            series += [line[field] for line in lines if isinstance(line.get(field), int | float)]
        again, events = self._noted.new()
        if again:
            self._events.clear()
        self._events += events
        loss, accept = tuple(self._loss), tuple(self._accept)
        return Scene(self._run, snapshot, self._rates(snapshot), loss, accept, tuple(self._events))

    def _rates(self, snapshot: Snapshot) -> dict[str, Rate]:
        lines = snapshot.progress.workers if snapshot.progress else ()
        now = {line.worker: line.status for line in lines if line.status is not None}
        self._past.append((snapshot.time, now))
        while len(self._past) > 2 and self._past[1][0] <= snapshot.time - RATE_OVER_S:
            self._past.popleft()
        before, statuses = self._past[0]
        rates = {}
        for worker, status in now.items():
            found = rate(status, statuses.get(worker), snapshot.time - before)
            if found is not None:
                rates[worker] = found
        return rates


def rate(new: Status, old: Status | None, seconds: float) -> Rate | None:
    """Between two statuses `seconds` apart, or since the worker began when that is too short to tell."""
    if old is None or seconds < SHORTEST_S:
        busy, waited, packs = new.busy_s, new.wait_s, new.packs
        seconds = busy + waited
    else:
        busy, waited, packs = new.busy_s - old.busy_s, new.wait_s - old.wait_s, new.packs - old.packs
    if seconds <= 0 or new.packs == 0:
        return None
    return Rate(packs / seconds, waited / (waited + busy) if waited + busy > 0 else 0.0)


def short(path: Path) -> str:
    """The path from here when it lies below, else the whole of it; in quotes if a shell needs them."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
