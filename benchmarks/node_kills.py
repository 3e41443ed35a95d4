"""The part of `benchmarks.node` that kills: each kind of worker, two drafters at once, all of them; a restart too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.kills import kill
from benchmarks.node_parts import Bench, name_of
from benchmarks.runs import brief, measured
from benchmarks.watched_run import RunFailed, WatchedRun
from launcher.compose import REPO

SETTLE_STEPS = 2
"""Steps between what was done before and the next kill."""


def kills(bench: Bench) -> None:
    """One run at a split; its rate over time is in the file as a curve."""
    split = bench.split
    limits = bench.limits
    found = measured(
        bench.place,
        bench.place.overrides(*split, "cache", "cluster.restarts_per_worker=20", "checkpoint.keep=1"),
        limits,
        then=lambda run, watch: one_after_another(run, split[1]),
    )
    print("kills", brief(found), flush=True)
    bench.keep("kills", {"split": name_of(split)} | found)


def one_after_another(run: WatchedRun, drafters: int) -> dict[str, Any]:
    """Each order and what came of it. What fails ends the series, with its error."""
    orders: list[tuple[str, ...]] = [("target-0",), ("coordinator",), (f"drafter-{drafters - 1}",)]
    orders += [("drafter-0", "drafter-1")] if drafters > 2 else []
    found: list[dict[str, Any]] = []
    try:
        for workers in orders:
            found.append(one(run, workers))
            print(found[-1], flush=True)
        found.append(restarted(run, "drafter-0"))
        print(found[-1], flush=True)
        found.append({"checkpoint": command(run, "checkpoint", within=100.0)})
        found.append(together(run, tuple(f"drafter-{i}" for i in range(drafters))))
        print(found[-1], flush=True)
    except (RunFailed, IndexError, subprocess.TimeoutExpired) as error:
        found.append({"error": f"{type(error).__name__}: {error}"})
    packs = [n for line in run.lines() for n in line["packs"]]
    once = packs == list(range(len(packs)))
    return {"kills": found, "every_pack_once": once, "curve": run.curve, "killed_at": run.kills}


def one(run: WatchedRun, workers: tuple[str, ...]) -> dict[str, Any]:
    """A kill, after some steps of quiet."""
    at = run.steps() + SETTLE_STEPS
    run.wait(lambda: run.steps() >= at, f"step {at}")
    if len(workers) == 1 and not workers[0].startswith("coordinator"):
        return kill(run, workers[0], at)  # type: ignore[arg-type]
    return together(run, workers)


def together(run: WatchedRun, workers: tuple[str, ...]) -> dict[str, Any]:
    """SIGKILL all of them at once; seconds until a step is committed that was not before, and until each is ready."""
    events = run.events()
    pids = [newest_pid(events, worker) for worker in workers]
    before, seen, began = run.steps(), len(events), time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    run.kills[round(began - run.began, 3)] = " and ".join(workers)

    def later(event: str, worker: str) -> list[dict[str, Any]]:
        return [e for e in run.events()[seen:] if e["event"] == event and e.get("worker") == worker]

    back: dict[str, float] = {}
    mark = "worker_started" if workers == ("coordinator",) else "worker_ready"
    for worker in workers:
        run.wait(lambda w=worker: later(mark, w), f"{mark} of {worker}")
        back[worker] = round(time.monotonic() - began, 2)
    rewound = [e["to"] for e in run.events()[seen:] if e["event"] == "rewound"]
    reached = rewound[-1] if rewound else before
    run.wait(lambda: run.steps() > reached, f"a step after {reached}")
    after = round(time.monotonic() - began, 2)
    lost = before - reached
    return {"workers": workers, "at_step": before, "back_after_s": back, "next_step_after_s": after, "lines_lost": lost}


def restarted(run: WatchedRun, worker: str) -> dict[str, Any]:
    """By command, not by a signal."""
    seen, began = len(run.events()), time.monotonic()
    said = command(run, "restart", worker, within=30.0)
    ready = lambda: [e for e in run.events()[seen:] if e["event"] == "worker_ready" and e["worker"] == worker]  # noqa: E731
    run.wait(ready, f"worker_ready of {worker}")
    return {"restart": worker, "said": said, "ready_after_s": round(time.monotonic() - began, 2)}


def command(run: WatchedRun, *words: str, within: float) -> str:
    """`python -m launcher` with the run as its first argument; what it says. Raises RunFailed."""
    line = [sys.executable, "-m", "launcher", words[0], str(run.folder), *words[1:]]
    answer = subprocess.run(line, capture_output=True, text=True, timeout=within, cwd=Path(REPO))
    if answer.returncode:
        raise RunFailed(f"{' '.join(words)}: {answer.stderr.strip()[-200:]}")
    return answer.stdout.strip()[-200:]


def newest_pid(events: list[dict[str, Any]], worker: str) -> int:
    """Of the worker that was started last under this name. Raises IndexError."""
    return int([e["pid"] for e in events if e["event"] == "worker_started" and e["worker"] == worker][-1])
