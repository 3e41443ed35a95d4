"""Commands that have to work without a coordinator: a signal to the launcher, and a look at what it leaves on disk."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from dfl_mp.log import read_lines
from dfl_mp.messages import COORDINATOR
from launcher import status
from launcher.asking import ANSWER_WITHIN_S, NotNow, refuse_unless_training
from launcher.attach import launcher_of, running
from launcher.happenings import Event
from launcher.signals import ORDERS
from launcher.snapshot import Snapshot
from launcher.stop import TERM_WITHIN_S
from launcher.tail import short
from launcher.words import plural

LOOK_S = 0.05
SAY_EVERY_S = 5.0


def stop(run_dir: Path) -> None:
    """End the run as Ctrl-C does, and wait for it. Raises NotNow."""
    if not running(run_dir):
        raise NotNow(f"{short(run_dir)} is over already")
    pid = launcher_of(run_dir)
    assert pid is not None
    if not _stopping(run_dir):  # a second signal would cut the first one's saving short
        os.kill(pid, signal.SIGTERM)
    print(f"{short(run_dir)} (process {pid}) saves and ends ...", flush=True)
    deadlines = json.loads((run_dir / "config.json").read_text())["deadline"]
    within = deadlines["save"] + 3 * deadlines["stop"] + 20.0
    late = f"it has not ended after {within:.0f} s; kill {pid} makes it hurry, kill -9 {pid} ends it"
    for _ in _looks(within, late, "stopping"):
        if not running(run_dir) or launcher_of(run_dir) != pid:
            break
    reason = status.over(run_dir)["reason"]
    steps = len(read_lines(run_dir / "metrics.jsonl"))
    print(f"{'done' if reason == 'done' else 'stopped'} after {plural(steps, 'step')}")
    if reason != "done":
        print(f"resume with: make resume RUN={short(run_dir)}")


def end_coordinator(what: str, run_dir: Path, worker: str) -> None:
    """`kill` or `restart` it, and wait until its successor has started. `worker`: `coordinator` or an incarnation of
    it. Raises NotNow."""
    refuse_unless_training(run_dir)
    if _stopping(run_dir):
        raise NotNow("the run is ending")
    before = _last_of_coordinator(run_dir)
    if what == "kill" and before["event"] == "worker_exited":
        raise NotNow("coordinator does not run; it is starting again")
    if worker not in (COORDINATOR, _id(before)):
        raise NotNow(f"{worker} is gone; {_id(before)} runs now")
    pid, number = launcher_of(run_dir), ORDERS[what]
    if pid is None or not _catches(pid, number):
        raise NotNow("the launcher takes no such command now; try again")
    os.kill(pid, number)
    within = TERM_WITHIN_S + ANSWER_WITHIN_S
    for _ in _looks(within, f"no other coordinator has started after {within:.0f} s; see make status", "waiting"):
        after = _last_of_coordinator(run_dir)
        if after["incarnation"] > before["incarnation"]:
            print(f"{_called(before)} {'killed' if what == 'kill' else 'ended'}; {_called(after)} has started")
            return
        refuse_unless_training(run_dir)


def _looks(within: float, late: str, doing: str) -> Iterator[None]:
    """A look every `LOOK_S`; says every few seconds that it lasts. Raises NotNow(late)."""
    began = said = time.monotonic()
    while (now := time.monotonic()) - began <= within:
        yield
        if now - said > SAY_EVERY_S:
            said = now
            print(f"{doing}, {now - began:.0f} s", flush=True)
        time.sleep(LOOK_S)
    raise NotNow(late)


def _stopping(run_dir: Path) -> bool:
    snapshot = Snapshot.read(run_dir)
    return snapshot is not None and snapshot.phase == "stopping"


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler: without one the signal would end it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _last_of_coordinator(run_dir: Path) -> Event:
    """Its newest start or exit in this launch. Raises NotNow when there has been none."""
    events: list[Event] = read_lines(run_dir / "events.jsonl")
    for event in reversed(events):
        if event["event"] in ("worker_started", "worker_exited") and event["worker"] == COORDINATOR:
            return event
        if event["event"] == "run_started":
            break
    raise NotNow("the coordinator has not started yet; try again")


def _id(event: Event) -> str:
    return f"{COORDINATOR}.{event['incarnation']}"


def _called(event: Event) -> str:
    """`coordinator.1 (pid 123)`"""
    return f"{_id(event)} (pid {event['pid']})"
