from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from dfl_mp.log import JsonLines
from dfl_mp.messages import (
    LAUNCHER,
    Alive,
    Answer,
    Command,
    Died,
    Finished,
    KillWorker,
    Message,
    Progress,
    Shutdown,
    Started,
    Stop,
    WorkerLine,
)
from dfl_mp.transport.links import Hub

NUM_STEPS = 10


class Stub:
    """Commits a step every 20 ms while all listed workers have been heard."""

    def __init__(self, run_dir: Path, mode: str) -> None:
        self.hub, self.mode = Hub(run_dir), mode
        self.told = JsonLines(run_dir / "told.jsonl")
        self.metrics = JsonLines(run_dir / "metrics.jsonl")
        self.step = len((run_dir / "metrics.jsonl").read_text().splitlines())
        self.listed: set[str] = set()
        self.heard: set[str] = set()
        self.over: str | None = None

    def take(self, sender: str, message: Message) -> None:
        if isinstance(message, Command | Answer):
            self.hub.send(LAUNCHER if isinstance(message, Command) else message.operator, message)
            return
        if sender != LAUNCHER:
            self.heard.add(sender)
            return
        self.told.append({"kind": type(message).__name__, **message.model_dump()})
        match message:
            case Alive():
                self.listed |= set(message.workers)
            case Started():
                self.listed.add(message.worker)
            case Died():
                self.listed.discard(message.worker)
            case Shutdown():
                self.over = f"stopped: {message.reason}"

    def commit(self) -> None:
        if self.mode == "crashing" or len(self.listed & self.heard) < 3:
            return
        if self.mode == "stuck" and "drafter-1.1" in self.listed:
            self.hub.send(LAUNCHER, KillWorker(worker="drafter-1.1", reason="the stub says so"))
            return
        self.metrics.append({"step": self.step, "loss": 10.0 - self.step, "tokens": 5.0, "step_s": 0.02})
        self.step += 1
        workers = tuple(WorkerLine(worker=w, status=None) for w in sorted(self.listed))
        numbers = {"tokens_per_s": 1.0, "eta_s": 1.0, "ready_slots": 0, "num_slots": 4, "generation": 1}
        steps = {"step": self.step, "num_steps": NUM_STEPS, "loss": 1.0, "accept_len_est": 1.0}
        self.hub.send(LAUNCHER, Progress(**steps, **numbers, workers=workers))
        if self.step >= NUM_STEPS and self.mode not in ("long", "deaf"):
            self.over = ""

    def run(self) -> None:
        next_commit = 0.0
        while self.over is None:
            received = self.hub.receive(0.02)
            if received is not None:
                self.take(*received)
            if time.monotonic() >= next_commit:
                next_commit = time.monotonic() + 0.02
                self.commit()
        for worker in self.heard:
            self.hub.send(worker, Stop())
        self.hub.send(LAUNCHER, Finished(error=self.over))
        time.sleep(0.2)
        self.hub.close()


if __name__ == "__main__":
    config = json.loads((Path(sys.argv[1]) / "config.json").read_text())
    assert config["train"]["packs_per_step"] == 2
    Stub(Path(sys.argv[1]), os.environ.get("DFL_STUB", "")).run()
