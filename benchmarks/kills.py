"""Kill workers of a running training and time how the rest goes on and how the killed one comes back.

    python -m benchmarks.kills --run /tmp/run --kill drafter-1@40 --kill target-0@120 -- experiment=smollm2 ...

Prints one line of JSON a kill: seconds until the next committed step, until the worker is ready again and in which
parts (python, cuda, load, wait, compile, proof), until it is back in the group (drafters), and how many ledger lines
were taken back. Leaves `kills-<device>-<date>.json` and the rate over time as a picture beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.rate_plot import draw
from dfl_mp.log import read_lines

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
        self.kills: dict[float, str] = {}
        """When, on the curve's clock, and who."""

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
    run.kills[round(time.monotonic() - run.began, 3)] = worker
    resumed = run.wait(lambda: run.steps() != before, "the next step")
    after = run.steps()
    found = {
        "worker": worker,
        "at_step": before,
        "next_step_after_s": round(resumed, 2),
        "lines_lost": max(0, before - after),
    }
    marks = {"exited": "worker_exited", "started": "worker_started"}
    if worker != "coordinator":
        marks["ready"] = "worker_ready"
    for name, event in marks.items():
        run.wait(lambda e=event: _since(run, seen, e, worker), f"{event} of {worker}")
        found[f"{name}_after_s"] = round(_since(run, seen, event, worker)[0]["time"] - killed_at, 2)
    if "ready" not in marks:
        return found
    ready = _since(run, seen, "worker_ready", worker)[0]
    found |= {"start_s": ready.get("seconds", {}), "compiled": ready.get("compiled", {})}
    if worker.startswith("drafter"):
        back = lambda: [e for e in run.events()[seen:] if e["event"] == "generation" and _has(e, worker)]  # noqa: E731
        run.wait(back, f"a generation with {worker}")
        found["in_group_after_s"] = round(back()[0]["time"] - killed_at, 2)
        found["join_s"] = round(back()[0]["time"] - ready["time"], 2)
    return found


def _since(run: Run, seen: int, event: str, worker: str) -> list[dict[str, Any]]:
    return [e for e in run.events()[seen:] if e["event"] == event and e.get("worker") == worker]


def _has(event: dict[str, Any], worker: str) -> bool:
    newest = max((m for m in event["members"] if m.startswith(f"{worker}.")), default="")
    return bool(newest) and not newest.endswith(".1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--kill", action="append", default=[], metavar="WORKER@STEP")
    parser.add_argument("--seconds", type=float, default=540.0, help="the run is stopped then")
    parser.add_argument("--out", type=Path)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    run = Run(options.run, options.overrides)
    kills: list[dict[str, Any]] = []
    for order in options.kill:
        worker, step = order.split("@")
        try:
            kills.append(kill(run, worker, int(step)))
        except SystemExit as error:
            kills.append({"worker": worker, "at_step": int(step), "error": str(error)})
        print(json.dumps(kills[-1]), flush=True)
        if "error" in kills[-1]:
            break
    code = finish(run, until=run.began + options.seconds)
    write(run, kills, code, options.out)
    sys.exit(code)


def finish(run: Run, until: float) -> int:
    """Follow the run to its end, which is asked for when it is time."""
    while run.process.poll() is None and time.monotonic() < until:
        run.steps()
        time.sleep(POLL_S)
    if run.process.poll() is None:
        run.process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(timeout=60.0)
    if run.process.poll() is None:
        run.process.kill()
    run.steps()
    return run.process.wait()


def write(run: Run, kills: list[dict[str, Any]], code: int, out: Path | None) -> None:
    """The result file and the picture."""
    from benchmarks.results_file import ResultFile

    lines = read_lines(run.folder / "metrics.jsonl")
    packs = [n for line in lines for n in line["packs"]]
    file = ResultFile("kills", out)
    file.add("kills", kills)
    file.add("run", {"exit": code, "steps": len(lines), "every_pack_once": packs == list(range(len(packs)))})
    starts = [e for e in run.events() if e["event"] == "worker_ready"]
    file.add("starts", [{k: e.get(k) for k in ("worker", "incarnation", "seconds", "compiled")} for e in starts])
    file.add("curve", run.curve)
    tokens = sum(line["tokens"] for line in lines) / max(1, len(lines))
    marks = {at: f"{worker} killed" for at, worker in run.kills.items()}
    picture = draw(file.path.with_suffix(".png"), run.curve, tokens, marks)
    print(json.dumps({**file.found["run"], "result": str(file.path), "picture": picture}), flush=True)


if __name__ == "__main__":
    main()
