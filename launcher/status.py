"""What `status` says: gathered once as plain data, which `--json` prints and people see as a table."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dfl_mp.log import read_lines
from dfl_mp.messages import Progress, incarnation_of
from launcher.snapshot import Snapshot, Worker, state_of, status_of
from launcher.tail import short
from launcher.words import clock, number, thousands

OFTEN = ("step", "num_steps", "loss", "accept_len_est", "tokens_per_s", "eta_s", "generation")
PIPELINE = ("ready_slots", "num_slots", "computing_packs", "held_packs", "drafter_busy", "target_busy")
NARROWEST = 72


def gather(run_dir: Path, snapshot: Snapshot | None, progress: Progress | None) -> dict[str, Any]:
    """All there is to say of a run that is under way. `progress` is the coordinator's answer; without one the
    launcher's snapshot has to do."""
    p = progress or (snapshot.progress if snapshot else None)
    pids, removed = _of_events(run_dir)
    phase = snapshot.phase if snapshot and snapshot.phase != "over" else "prepare"
    seen: dict[str, Any] = {
        "run": str(run_dir),
        "phase": "train" if progress and phase in ("prepare", "evaluate") else phase,
        "pid": snapshot.pid if snapshot else None,
        "seconds": time.time() - snapshot.began if snapshot else None,
        "message": snapshot.message if snapshot else "",
        **{field: getattr(p, field) if p else None for field in (*OFTEN, *PIPELINE)},
    }
    workers = {worker.name: worker for worker in snapshot.workers} if snapshot else {}
    for line in progress.workers if progress else ():  # newer than the snapshot
        name = line.worker.rsplit(".", 1)[0]
        known = workers.get(name)
        if known is None or known.id != line.worker:
            workers[name] = Worker(name=name, id=line.worker, state="starting")
    rows = [_row(worker, p, pids, worker.name in removed) for worker in workers.values()]
    seen["workers"] = sorted(
        rows, key=lambda row: (row["name"].split("-")[0] != "target", int(row["name"].split("-")[1]))
    )
    seen["waiting_for"] = _missing(seen) if seen["phase"] == "train" else None
    return seen


def over(run_dir: Path) -> dict[str, Any]:
    """A run that is over: how it ended, and its summary when it is done."""
    ends = [event for event in read_lines(run_dir / "events.jsonl") if event["event"] in ("run_started", "run_stopped")]
    last = ends[-1] if ends else {}
    reason = last["reason"] if last.get("event") == "run_stopped" else "killed"
    path = run_dir / "summary.json"
    summary = json.loads(path.read_text()) if reason == "done" and path.exists() else None
    return {"run": str(run_dir), "phase": "over", "reason": reason, "error": last.get("error"), "summary": summary}


def show(seen: dict[str, Any]) -> None:
    """For people."""
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = max(console.width, NARROWEST + 28)
    for line in headlines(seen):
        console.print(line)
    if seen["phase"] in ("train", "stopping"):
        console.print(table(seen["workers"]))
    if seen["waiting_for"]:
        console.print(seen["waiting_for"])


def headlines(seen: dict[str, Any]) -> list[str]:
    """The run, and how far it is."""
    age = "" if seen["seconds"] is None else f"  {clock(seen['seconds'])}"
    lines = [f"{short(Path(seen['run']))}  {seen['phase']}, process {seen['pid']}{age}"]
    if seen["phase"] in ("prepare", "evaluate"):
        return [*lines, *filter(None, [seen["message"]])]
    if seen["step"] is None:
        return [*lines, "starting: models are loaded and compiled"]
    eta = "" if not seen["eta_s"] else f"  ETA {clock(seen['eta_s'])}"
    lines.append(
        f"step {seen['step']}/{seen['num_steps']}  loss {number(seen['loss'])}  "
        f"accept_len_est {number(seen['accept_len_est'], 2)}  {thousands(seen['tokens_per_s'])} tokens/s{eta}"
    )
    slots = f"slots ready {seen['ready_slots']}/{seen['num_slots']}"
    packs = f"packs at targets {seen['computing_packs']}, at drafters {seen['held_packs']}"
    lines.append(f"generation {seen['generation']}  {slots}  {packs}")
    if seen["drafter_busy"] is not None and seen["target_busy"] is not None:
        shares = f"drafters {seen['drafter_busy']:.0%}, targets {seen['target_busy']:.0%}"
        lines.append(f"busy: {shares} (since the coordinator's first step)")
    return lines


def table(rows: list[dict[str, Any]]) -> Table:
    """A line for each worker."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title, right in (("worker", False), ("pid", True), ("state", False), ("since", True), ("packs", True)):
        grid.add_column(title, justify="right" if right else "left", no_wrap=True)
    grid.add_column("waiting", justify="right", no_wrap=True)
    for row in rows:
        since = "-" if row["since_s"] is None else clock(row["since_s"])
        waiting = "-" if row["waiting"] is None else f"{row['waiting']:.0%}"
        packs = "-" if row["packs"] is None else f"{row['packs']:,}"
        grid.add_row(row["worker"] or row["name"], str(row["pid"] or "-"), row["state"], since, packs, waiting)
    return grid


def _row(worker: Worker, p: Progress | None, pids: dict[str, int], removed: bool) -> dict[str, Any]:
    status = status_of(worker, p)
    spent = status.busy_s + status.wait_s if status else 0.0
    return {
        "name": worker.name,
        "worker": worker.id,
        "incarnation": incarnation_of(worker.id) if worker.id else None,
        "pid": pids.get(worker.id) if worker.id else None,
        "state": "removed" if removed else (status.note if status else "") or state_of(worker, p),
        "since_s": status.since_s if status else None,
        "step": status.step if status else None,
        "packs": status.packs if status else None,
        "waiting": status.wait_s / spent if status and spent > 0 else None,
    }


def _missing(seen: dict[str, Any]) -> str | None:
    """Whom the run waits for, when a whole role is removed."""
    for role, more in (("drafter", "make add-drafter or "), ("target", "")):
        names = [row["name"] for row in seen["workers"] if row["name"].startswith(role)]
        if names and all(row["state"] == "removed" for row in seen["workers"] if row["name"] in names):
            return f"waiting: no {role} is left; {more}make restart WORKER={names[0]} brings one"
    return None


def _of_events(run_dir: Path) -> tuple[dict[str, int], set[str]]:
    """(process of each incarnation, workers that are removed) of this launch."""
    pids: dict[str, int] = {}
    removed: set[str] = set()
    for event in read_lines(run_dir / "events.jsonl"):
        match event["event"]:
            case "run_started":
                removed.clear()
            case "worker_started":
                pids[f"{event['worker']}.{event['incarnation']}"] = event["pid"]
                removed.discard(event["worker"])
            case "worker_removed":
                removed.add(event["worker"])
    return pids, removed
