"""Runs of a size on this machine: a target without weights, conversations, overrides, and one measured run."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.busy import tokens_per_s, waiting
from benchmarks.chats import write_chats
from benchmarks.dummy_target import write
from benchmarks.machine_watch import MachineWatch, watching
from benchmarks.replay_target import MODULE as REPLAY
from benchmarks.watched_run import RunFailed, WatchedRun

MASK_TOKEN = {"qwen3_8b": 151669, "27b": 248000, "tiny": 4095}
ROW = {"qwen3_8b": (4096, 512), "27b": (4096, 512), "tiny": (256, 16)}
"""Tokens and anchors of a row, which is a pack."""
PACKS = {"qwen3_8b": 24, "27b": 24, "tiny": 4}
"""G."""
SKIP = 2
"""Steps at a run's beginning that are not measured: the first waits for the models, the second for the first's end."""


@dataclass
class Place:
    """Where the runs of one size live: a private folder with target, data and caches. `close` removes it."""

    size: str
    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="dfl-bench-")))
    runs: int = 0

    def __post_init__(self) -> None:
        write(self.size, self.root / "target")
        write_chats(self.root / "chats.jsonl", ROW[self.size][0])

    def overrides(self, targets: int | None, drafters: int | None, cache: str, *more: str) -> list[str]:
        """Of a run that never evaluates and never saves; `cache` names its folder of compiled code."""
        tokens, anchors = ROW[self.size]
        return [
            "experiment=qwen3_8b",
            "run.name=bench",
            f"target.path={self.root / 'target'}",
            "target.load_format=dummy",
            f"drafter.mask_token_id={MASK_TOKEN[self.size]}",
            f"data.path={self.root / 'chats.jsonl'}",
            f"data.cache_dir={self.root / 'data'}",
            "data.prompts=null",
            f"data.row_tokens={tokens}",
            f"data.anchors_per_row={anchors}",
            f"train.packs_per_step={PACKS[self.size]}",
            "train.max_steps=400",
            "checkpoint.every_steps=0",
            f"cluster.compile_cache={self.root / cache}",
            f"cluster.targets={targets or 'null'}",
            f"cluster.drafters={drafters or 'null'}",
            *more,
        ]

    def folder(self) -> Path:
        self.runs += 1
        return self.root / f"run-{self.runs}"

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


@dataclass(frozen=True)
class Limits:
    """Of one run: seconds until its first step, steps to measure, and seconds in which they have to come."""

    start_s: float
    steps: int
    seconds: float


def measured(
    place: Place,
    overrides: list[str],
    limits: Limits,
    replay: bool = False,
    then: Callable[[WatchedRun, MachineWatch], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Start it, measure it, end it: rates, busy shares, seconds to the first step, memory. Never raises RunFailed:
    what it says is `error`. `then` goes on with the living run, and what it finds is added."""
    with (
        WatchedRun(place.folder(), overrides, REPLAY if replay else "launcher") as run,
        watching(run.process.pid) as watch,
    ):
        found: dict[str, Any] = {}
        try:
            run.wait_steps(1, limits.start_s)
            found |= {"first_step_s": run.first_step_s, "starts": run.starts()}
            run.wait_steps(SKIP, limits.seconds)
            since = time.monotonic()
            run.measure(SKIP, limits.steps, limits.seconds)
            found |= figures(run, since) | watch.found(since)
            if then is not None:
                found |= then(run, watch)
        except RunFailed as error:
            found["error"] = str(error)
            found |= watch.found()
        return found


def figures(run: WatchedRun, since: float) -> dict[str, Any]:
    """Rates and shares of the steps after SKIP."""
    lines = run.lines()
    timed = lines[SKIP:]
    busy = run.seen.busy(lines, SKIP, since)
    newest = run.seen.newest
    said = {role: getattr(newest, f"{role}_busy", None) for role in ("drafter", "target")}
    return {
        "steps_measured": len(timed),
        "tokens_per_s": round(tokens_per_s(timed), 1),
        "step_s": round(sum(line["step_s"] for line in timed) / max(1, len(timed)), 4),
        "drafter_waiting": round(waiting(timed), 4),
        "busy": busy,
        "coordinator_says": said,
        "drafter_busy": mean_of_role(busy, "drafter") or said["drafter"],
        "target_busy": mean_of_role(busy, "target"),
        "transport": [{k: e[k] for k in ("kind", "gb_per_s")} for e in run.events("transport_proved")],
        "recompiles": len(run.events("recompile")),
    }


def mean_of_role(busy: dict[str, float], role: str) -> float | None:
    shares = [share for worker, share in busy.items() if worker.startswith(f"{role}-")]
    return round(sum(shares) / len(shares), 4) if shares else None


def brief(found: dict[str, Any]) -> dict[str, Any]:
    """What is worth a line on the screen."""
    keys = ("error", "first_step_s", "tokens_per_s", "step_s", "drafter_busy", "target_busy", "drafter_waiting")
    return {key: found[key] for key in keys if key in found}
