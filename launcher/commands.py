"""The launcher's side of an operator's commands: who is to live. Changes tables and sends signals; the supervisor's
loop buries and starts."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from dfl_mp.errors import ConfigError
from dfl_mp.messages import COORDINATOR, Answer, Command, is_worker, role_of
from launcher import machine
from launcher.child import Child
from launcher.crew import Crew
from launcher.machine import Machine
from launcher.plan import Placement, one_more_drafter
from launcher.stop import TERM_WITHIN_S


class Refused(Exception):
    """A command that is not carried out, with its exit code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Commands:
    """`places`, `due` and `deaths` are the supervisor's own tables, by name of worker."""

    def __init__(
        self,
        crew: Crew,
        places: dict[str, Placement],
        due: dict[str, float],
        deaths: dict[str, list[float]],
        packs_per_step: int,
    ) -> None:
        self.removed: set[str] = set()
        """Not to be started again."""
        self.look: Callable[[], Machine] = machine.look
        self._added: set[str] = set()
        self._crew, self._places, self._due, self._deaths = crew, places, due, deaths
        self._packs_per_step = packs_per_step

    def obey(self, command: Command) -> Answer:
        """Carry the command out; what has happened, in words."""
        try:
            code, text = 0, self._do(command)
        except Refused as refusal:
            code, text = refusal.code, str(refusal)
        return Answer(operator=command.operator, code=code, text=text)

    def of_coordinator(self, what: str) -> str:
        """`kill` or `restart` the coordinator; what has happened, in words."""
        try:
            return self._kill(COORDINATOR) if what == "kill" else self._restart(COORDINATOR)
        except Refused as refusal:
            return str(refusal)

    def _do(self, command: Command) -> str:
        if command.what == "add-drafter":
            return self._add()
        name, _, incarnation = command.worker.partition(".")
        if name not in self._places:
            given = f"no worker {command.worker}" if name else "WORKER has to be given"
            raise Refused(2, f"{given}; there are {', '.join(self._places)} and, to kill or restart, the coordinator")
        child = self._crew.alive.get(name)
        if incarnation and (child is None or child.id != command.worker):
            raise Refused(1, f"{command.worker} is gone; {child.id if child else f'no {name}'} runs now")
        return {"kill": self._kill, "restart": self._restart, "remove": self._remove}[command.what](name)

    # ---- commands --------------------------------------------------------------------------------------------------

    def _kill(self, name: str) -> str:
        child = self._crew.alive.get(name)
        if child is None:
            then = f"make restart WORKER={name} starts it again" if name in self.removed else "it is starting again"
            raise Refused(1, f"{name} does not run; {then}")
        child.ordered = True
        child.signal_group(signal.SIGKILL)
        return f"{_called(child)} killed; {'it was removed' if name in self.removed else 'it starts again'}"

    def _restart(self, name: str) -> str:
        self.removed.discard(name)
        self._deaths.pop(name, None)
        child = self._crew.alive.get(name)
        if child is None:
            self._due[name] = time.monotonic()
            return f"{name} starts again"
        self._end(child)
        return f"{_called(child)} ends; it starts again"

    def _remove(self, name: str) -> str:
        if name in self.removed:
            raise Refused(1, f"{name} is removed already; make restart WORKER={name} brings it back")
        child = self._crew.alive.get(name)
        self.removed.add(name)
        self._due.pop(name, None)
        self._crew.note("worker_removed", worker=name)
        if child is not None:
            self._end(child)
        return f"{_called(child) if child else name} removed; {self._without(name)}"

    def _add(self) -> str:
        try:
            place = one_more_drafter(self._places, self.removed, self.look(), self._packs_per_step)
        except ConfigError as error:
            raise Refused(1, str(error)) from None
        self._places[place.name] = place
        self._added.add(place.name)
        self._deaths.pop(place.name, None)
        self.removed.discard(place.name)
        self._due[place.name] = time.monotonic()
        self._crew.note("worker_added", worker=place.name)
        where = "on CPU" if place.gpu is None else f"on GPU {place.gpu.name}"
        return f"{place.name} starts {where}; it joins the others once it is ready"

    def _end(self, child: Child) -> None:
        child.ordered = True
        child.kill_at = time.monotonic() + TERM_WITHIN_S
        child.signal_group(signal.SIGTERM)

    def _without(self, name: str) -> str:
        """Who goes on, or that the run waits."""
        role = role_of(name)
        rest = [other for other in self._places if role_of(other) == role and other not in self.removed]
        if rest:
            return f"{' and '.join(rest)} {'go' if len(rest) > 1 else 'goes'} on"
        back = f"make restart WORKER={name}"
        return f"no {role} is left: the run waits for {back if role == 'target' else f'make add-drafter or {back}'}"

    # ---- for the supervisor's loop -----------------------------------------------------------------------------------

    def press(self) -> None:
        """Kill those that were asked to end and have not."""
        for child in self._crew.alive.values():
            if child.kill_at is not None and time.monotonic() >= child.kill_at:
                child.kill_at = None
                child.signal_group(signal.SIGKILL)

    def settles(self, child: Child) -> bool:
        """A worker died: whether it is not to be started again, or at once and uncounted."""
        if child.name in self.removed:
            return True
        if child.ordered:
            self._due[child.name] = time.monotonic()
        return child.ordered

    def gives_up(self, child: Child) -> bool:
        """An added drafter failed to start: the run does without it, and goes on."""
        if child.name not in self._added or not is_worker(child.id):
            return False
        self.removed.add(child.name)
        self._crew.note("worker_removed", worker=child.name, reason=f"failed to start; see {child.log}")
        return True


def _called(child: Child) -> str:
    """`drafter-1.2 (pid 123)`"""
    return f"{child.id} (pid {child.process.pid})"
