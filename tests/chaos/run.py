"""A tiny run of real processes, as the driver and the verdict see it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from dfl_mp.log import read_lines
from dfl_mp.messages import role_of
from launcher.compose import REPO
from launcher.run_dir import sweep
from tests.process.launches import MARK, processes

QUIET = ("data.prompts=null", "run.progress_every_s=60")
CHAOTIC = (
    "checkpoint.every_steps=5",
    "cluster.restarts_per_worker=1000",
    "deadline.form=40",
    "deadline.reduce=40",
    "deadline.step=120",
    "deadline.start=120",
)
FINE = (0, 75)
"""Exit codes: 75 is a coordinator that starts again because its view of a link was wrong (rule 19)."""


class Run:
    """A launcher, in a session of its own, and what its folder says."""

    def __init__(self, run_dir: Path, module: str = "launcher") -> None:
        self.dir, self._module = run_dir, module
        self._out = run_dir.with_suffix(".out")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str) -> None:
        environment = dict(os.environ, CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
        environment |= {MARK: str(self.dir), "PYTHONPATH": str(REPO)}
        command = [sys.executable, "-m", self._module, *words]
        with self._out.open("ab") as out:
            self.process = subprocess.Popen(
                command, cwd=REPO, env=environment, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def over(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def wait(self, within: float) -> int:
        assert self.process is not None
        return self.process.wait(timeout=within)

    def out(self) -> str:
        return self._out.read_text()[-4000:]

    def steps(self) -> int:
        """Lines of the ledger."""
        path = self.dir / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def lines(self) -> list[dict[str, Any]]:
        return read_lines(self.dir / "metrics.jsonl")

    def events(self) -> list[dict[str, Any]]:
        return read_lines(self.dir / "events.jsonl")

    def newest(self, name: str) -> tuple[str, int]:
        """(id, process id) of the newest process of that name."""
        event = [e for e in self.events() if e["event"] == "worker_started" and e["worker"] == name][-1]
        return f"{name}.{event['incarnation']}", event["pid"]

    def crashes(self) -> list[str]:
        """Workers that ended by themselves with an error: no fault explains that."""
        ended = [e for e in self.events() if e["event"] == "worker_exited" and e["code"] not in (*FINE, None)]
        return [f"{e['worker']}.{e['incarnation']} exited with {e['code']}" for e in ended]

    def settled(self) -> bool:
        """All workers are up: the newest generation has all drafters, and every target is ready."""
        newest: dict[str, int] = {}
        ready: set[tuple[str, int]] = set()
        members: list[str] = []
        names: list[str] = []
        for event in self.events():
            worker = event.get("worker", "")
            match event["event"]:
                case "run_started":
                    names, members = event["workers"], []
                    newest = {}
                case "worker_started":
                    newest[worker] = event["incarnation"]
                    members = [] if worker == "coordinator" else members
                case "worker_exited":
                    newest.pop(worker, None)
                case "worker_ready":
                    ready.add((worker, event["incarnation"]))
                case "generation":
                    members = event["members"]
        if not names or any(name not in newest for name in names):
            return False
        drafters = sorted(f"{n}.{newest[n]}" for n in names if role_of(n) == "drafter")
        targets = [n for n in names if role_of(n) == "target"]
        return sorted(members) == drafters and all((n, newest[n]) in ready for n in targets)

    def kill(self) -> float:
        """SIGKILL of the launcher; seconds until none of its processes is left."""
        assert self.process is not None
        self.process.kill()
        began = time.monotonic()
        self.process.wait()
        while processes(self.dir) and time.monotonic() - began < 30:
            time.sleep(0.01)
        return time.monotonic() - began

    def close(self) -> None:
        """Whatever happened: no process is left."""
        if not self.over:
            self.kill()
        sweep(self.dir)
