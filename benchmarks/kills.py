"""Kill workers of a running training and time how the rest goes on and how the killed one comes back.

    python -m benchmarks.kills --run /tmp/run --kill drafter-1@40 --kill target-0@120 -- experiment=smollm2 ...

Prints one line of JSON a kill: seconds until the next committed step, until the worker is ready again, until it is
back in the group (drafters), and how many ledger lines were taken back. Leaves `throughput.json`: (seconds, steps
committed).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from dfl_mp.log import read_lines, write_json

POLL_S = 0.01
PATIENCE_S = 180.0


class Run:
    """A launcher as a child, watched through the files that it leaves."""

    def __init__(self, folder: Path, overrides: list[str]) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "launcher", "train", f"run.dir={folder}", *overrides]
        self.log = (folder.parent / f"{folder.name}.log").open("w")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        self.began = time.monotonic()
        self.curve: list[tuple[float, int]] = []

    def steps(self) -> int:
        """Committed steps; remembers when they came."""
        path = self.folder / "metrics.jsonl"
        steps = path.read_bytes().count(b"\n") if path.exists() else 0
        if not self.curve or steps != self.curve[-1][1]:
            self.curve.append((round(time.monotonic() - self.began, 3), steps))
        return steps

    def events(self) -> list[dict[str, Any]]:
        return read_lines(self.folder / "events.jsonl")

    def wait(self, condition, what: str, within: float = PATIENCE_S) -> float:  # type: ignore[no-untyped-def]
        """Seconds until the condition holds; raises when it does not within the patience."""
        began = time.monotonic()
        while not condition():
            if self.process.poll() is not None or time.monotonic() - began > within:
                raise SystemExit(f"{what} did not come; see {self.log.name}")
            self.steps()
            time.sleep(POLL_S)
        return time.monotonic() - began


def kill(run: Run, worker: str, at_step: int) -> dict[str, Any]:
    """SIGKILL the worker once so many steps are committed, and time the consequences."""
    run.wait(lambda: run.steps() >= at_step, f"step {at_step}")
    pid = [e["pid"] for e in run.events() if e["event"] == "worker_started" and e["worker"] == worker][-1]
    before, seen = run.steps(), len(run.events())
    os.kill(pid, signal.SIGKILL)
    killed_at = time.time()
    resumed = run.wait(lambda: run.steps() != before, "the next step")
    after = run.steps()
    found = {
        "worker": worker,
        "at_step": before,
        "next_step_after_s": round(resumed, 2),
        "lines_lost": max(0, before - after),
    }
    marks = {"exited": "worker_exited", "started": "worker_started", "ready": "worker_ready"}
    for name, event in marks.items():
        run.wait(lambda e=event: _since(run, seen, e, worker), f"{event} of {worker}")
        found[f"{name}_after_s"] = round(_since(run, seen, event, worker)[0]["time"] - killed_at, 2)
    if worker.startswith("drafter"):
        back = lambda: [e for e in run.events()[seen:] if e["event"] == "generation" and _has(e, worker)]  # noqa: E731
        run.wait(back, f"a generation with {worker}")
        found["in_group_after_s"] = round(back()[0]["time"] - killed_at, 2)
    return found


def _since(run: Run, seen: int, event: str, worker: str) -> list[dict[str, Any]]:
    return [e for e in run.events()[seen:] if e["event"] == event and e.get("worker") == worker]


def _has(event: dict[str, Any], worker: str) -> bool:
    newest = max((m for m in event["members"] if m.startswith(f"{worker}.")), default="")
    return bool(newest) and not newest.endswith(".1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--kill", action="append", default=[], metavar="WORKER@STEP")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    run = Run(options.run, options.overrides)
    for order in options.kill:
        worker, step = order.split("@")
        print(json.dumps(kill(run, worker, int(step))), flush=True)
    code = run.process.wait()
    run.steps()
    write_json(options.run / "throughput.json", run.curve)
    lines = read_lines(options.run / "metrics.jsonl")
    packs = [n for line in lines for n in line["packs"]]
    print(json.dumps({"exit": code, "steps": len(lines), "every_pack_once": packs == list(range(len(packs)))}))
    sys.exit(code)


if __name__ == "__main__":
    main()
