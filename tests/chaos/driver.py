"""Runs one chaos run: arms a mine, lets steps go on until somebody treads on it, does what the fault asks for."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from dfl_mp.log import write_json
from launcher import ctl
from launcher.asking import NotNow
from tests.chaos.hostile import attack
from tests.chaos.mines import folder_of
from tests.chaos.plan import Fault
from tests.chaos.run import Run
from tests.chaos.states import CONT, KILL, NOISE, RESTART

LOOK_S = 0.02
SETTLE_S = 180.0
HIT_S = 180.0
AHEAD = 3
"""Steps that a run is let go beyond the newest committed one while a mine waits in the middle of a step."""
STANDS_S = 5.0
LAUNCHER_GONE_S = 2.0
NOISE_TIMES = 30
MAX_LINES = 4
"""Of events that a storm of noise may leave while it lasts."""
WITHOUT_MINE = ("launcher", "hostile")


class Failed(Exception):
    """The run or the driver did not do what it has to."""


class Driver:
    """`hits` counts (group, state, kind of worker hit, fault) of mines that went off; `say` takes a line of the log."""

    def __init__(self, run: Run, steps: int, seed: int, say: Callable[[str], None]) -> None:
        self.run, self.steps, self.say = run, steps, say
        self.hits: Counter[tuple[str, ...]] = Counter()
        self.kills = 0
        self.missed: list[Fault] = []
        self._rng = random.Random(seed)
        self._folder = folder_of(run.dir)
        self._gate = 1
        self._stood = 0, 0.0
        """How many steps were committed, and since when."""
        for name in ("armed", "taken", "fired"):
            (self._folder / name).mkdir(parents=True)
        self._open(1)

    def work_off(self, faults: Sequence[Fault]) -> None:
        """All faults, then the rest of the run undisturbed."""
        self._until(self.run.settled, SETTLE_S, "the first generation")
        for fault in faults:
            if not self._one(fault):
                self.missed.append(fault)
            if crashed := self.run.crashes():
                raise Failed(f"{', '.join(crashed)}; logs are in {self.run.dir / 'logs'}")
        self._open(self.steps)

    # ---- one fault -------------------------------------------------------------------------------------------------

    def _one(self, fault: Fault) -> bool:
        """Whether somebody was hit."""
        if fault.calm or fault.action == RESTART or fault.state.role in WITHOUT_MINE:
            self._until(self.run.settled, SETTLE_S, "all workers are up")
        if fault.state.role in WITHOUT_MINE:
            self._kill_launcher() if fault.state.role == "launcher" else self._make_noise()
            return True
        self._arm(fault)
        if fault.state.start:
            self._end(fault.state.start, fault.trigger)
        fired = self._folder / "fired" / f"{fault.number}.json"
        try:
            self._until(fired.exists, HIT_S, fault.state.key, ahead=not fault.state.start)
        except TimeoutError as error:
            self.say(f"  {fault.number:3} missed: {error}")
            return not self._disarm(fault)
        self._after(fault, json.loads(fired.read_text()))
        return True

    def _after(self, fault: Fault, hit: dict[str, Any]) -> None:
        role = hit["worker"].split("-")[0].split(".")[0]
        self.hits[fault.state.group, fault.state.key, role, fault.action] += 1
        self.kills += fault.action != CONT
        self.say(f"  {fault.number:3} step {self.run.steps():4}  {fault.state.key}: {hit['worker']} {fault.action}")
        if fault.cont_after_s is not None:
            time.sleep(fault.cont_after_s)
            with contextlib.suppress(ProcessLookupError):
                os.kill(hit["pid"], signal.SIGCONT)
        elif fault.action == RESTART:
            self._order("restart", hit["worker"])

    def _arm(self, fault: Fault) -> None:
        write_json(self._folder / "new.json", fault.mine())
        name = f"{fault.number}@{fault.state.role}.{fault.state.name}.json"
        (self._folder / "new.json").rename(self._folder / "armed" / name)

    def _disarm(self, fault: Fault) -> bool:
        """False when somebody has just taken it."""
        name = f"{fault.number}@{fault.state.role}.{fault.state.name}.json"
        with contextlib.suppress(FileNotFoundError):
            (self._folder / "armed" / name).unlink()
            return True
        return False

    def _end(self, role: str, how: str) -> None:
        """End a worker so that another one has to start."""
        names = ["coordinator"] if role == "coordinator" else self._names(role)
        name = self._rng.choice(names)
        worker, pid = self.run.newest(name)
        if how == "SIGKILL" or self._order(how, worker) != 0:
            how = "SIGKILL"  # while the coordinator starts again nobody takes an order
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.kills += 1
        self.hits["anywhere", "anywhere", role, how] += 1

    def _names(self, role: str) -> list[str]:
        started = next(e for e in self.run.events() if e["event"] == "run_started")
        return [name for name in started["workers"] if name.startswith(role)]

    def _order(self, what: str, worker: str) -> int:
        """An operator's command; it may be refused, since the worker may be gone by now. Its exit code."""
        out, code = io.StringIO(), 1
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(NotNow):
            code = ctl.main(what, [str(self.run.dir), worker])
        self.say("      " + " / ".join(out.getvalue().split("\n"))[:150])
        return code

    def _kill_launcher(self) -> None:
        time.sleep(self._rng.uniform(0.0, 0.5))
        took = self.run.kill()
        self.say(f"      step {self.run.steps():4}  launcher SIGKILL; none of its processes after {took:.2f} s")
        if took > LAUNCHER_GONE_S:
            raise Failed(f"{took:.1f} s after the launcher's death its processes were not gone")
        self.kills += 1
        self.hits["launcher", "launcher.anywhere", "launcher", KILL] += 1
        self.run.start("resume", str(self.run.dir))

    def _make_noise(self) -> None:
        """A hostile peer speaks to the coordinator; that is said in events, few for many messages."""
        before = len(self._refused())
        self._open(max(self._gate, min(self.run.steps() + AHEAD, self.steps - AHEAD)))
        sent = attack(self.run.dir, self._rng, NOISE_TIMES)
        self._until(lambda: len(self._refused()) > before, SETTLE_S, "refused_message")
        lines = self._refused()[before:]
        self.say(f"      step {self.run.steps():4}  {sent} hostile messages: {len(lines)} events")
        if len(lines) > MAX_LINES:
            raise Failed(f"{sent} hostile messages left {len(lines)} events")
        self.hits["hostile peer", "hostile.anywhere", "coordinator", NOISE] += 1

    def _refused(self) -> list[dict[str, Any]]:
        return [e for e in self.run.events() if e["event"] == "refused_message"]

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def _open(self, gate: int) -> None:
        """Steps below `gate` may be computed."""
        self._gate = gate
        part = self._folder / "gate.part"
        part.write_text(str(gate))
        part.rename(self._folder / "gate")

    def _go_ahead(self, what: str) -> None:
        """Let some more steps go on. After a rewind the target may stand at the gate with a pack of before, so that a
        gate that does not help is moved on."""
        steps, now = self.run.steps(), time.monotonic()
        if steps + AHEAD >= self.steps:
            raise TimeoutError(f"{what} did not come before the run's last steps")
        if steps != self._stood[0]:
            self._stood = steps, now
        if self._gate < steps + AHEAD:
            self._open(steps + AHEAD)
        elif now - self._stood[1] > STANDS_S and self._gate < self.steps - 1:
            self._stood = steps, now
            self._open(self._gate + 1)

    def _until(self, condition: Callable[[], bool], within: float, what: str, ahead: bool = False) -> None:
        """`ahead`: steps go on meanwhile. Raises Failed when the run ends, TimeoutError."""
        end = time.monotonic() + within
        while not condition():
            if self.run.over:
                raise Failed(f"the run ended while {what} was waited for:\n{self.run.out()}")
            if ahead:
                self._go_ahead(what)
            if time.monotonic() > end:
                raise TimeoutError(f"{what} did not come within {within:.0f} s at step {self.run.steps()}")
            time.sleep(LOOK_S)
