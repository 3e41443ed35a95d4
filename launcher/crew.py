"""The table of worker processes: starts, finds the dead, stops. Every start and end is an event of the run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dfl_mp.gate import Gate
from dfl_mp.log import JsonLines
from launcher.child import Child, Lifeline, Surroundings, signal_name, spawn
from launcher.plan import Placement
from launcher.run_dir import first_incarnation

MODULES = {role: f"dfl_mp.roles.{role}" for role in ("prepare", "coordinator", "target", "drafter", "evaluator")}
IDENTIFIED = ("target", "drafter")
"""Roles of which there can be several; they are told their id."""


class Crew:
    """All processes of one launch. `alive` by name; `fallen` are reaped ones, newest last."""

    def __init__(self, run_dir: Path, prepared_within: float, modules: Mapping[str, str] = MODULES) -> None:
        self.run_dir = run_dir
        self.alive: dict[str, Child] = {}
        self.fallen: list[Child] = []
        self._first = first_incarnation(run_dir)
        self._modules = modules
        self._lifeline, self._gate = Lifeline(), Gate(prepared_within)
        self._events = JsonLines(run_dir / "events.jsonl")

    def start(self, name: str, placement: Placement | None, threads: int) -> Child:
        """Start the next incarnation of a worker; its role is the beginning of its name.

        Targets and drafters that are started before `open_gate` load their libraries and wait for it.
        """
        incarnation = max((c.incarnation + 1 for c in self.fallen if c.name == name), default=self._first)
        role = name.split("-", 1)[0]
        arguments = [str(self.run_dir), *([f"{name}.{incarnation}"] if role in IDENTIFIED else [])]
        where = (name, incarnation, self.run_dir / "logs")
        gate = self._gate if self._gate.closed and role in IDENTIFIED else None
        child = spawn(self._modules[role], arguments, where, Surroundings(placement, threads, self._lifeline, gate))
        self.alive[name] = child
        self.note("worker_started", child)
        if not self.first_incarnation(child):
            self.note("worker_restarted", child)
        return child

    def open_gate(self) -> None:
        """The run is prepared: whoever waits for that may go on."""
        self._gate.open()
        for child in self.alive.values():
            child.let_through()

    def first_incarnation(self, child: Child) -> bool:
        """Whether it is the first of its name in this launch."""
        return child.incarnation == self._first

    def bury(self) -> list[Child]:
        """Reap those that have died since the last call."""
        dead = [child for child in self.alive.values() if _has_ended(child)]
        for child in dead:
            child.reap()
            del self.alive[child.name]
            self.fallen.append(child)
            code = child.code or 0
            ended = {"code": code, "signal": None} if code >= 0 else {"code": None, "signal": signal_name(-code)}
            self.note("worker_exited", child, **ended, stuck=child.stuck or None)
        return dead

    def signal_all(self, number: signal.Signals) -> None:
        for child in self.alive.values():
            child.signal_group(number)

    def note(self, event: str, child: Child | None = None, **fields: Any) -> None:
        """Append to `events.jsonl`."""
        who = {"worker": child.name, "pid": child.process.pid, "incarnation": child.incarnation} if child else {}
        self._events.append({"time": time.time(), "event": event, **who, **fields})

    def close(self) -> None:
        self._lifeline.close()
        self._gate.open()
        self._events.close()


def _has_ended(child: Child) -> bool:
    return os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
