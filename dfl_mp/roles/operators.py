"""The coordinator's counter for people's commands: what has to wait for a checkpoint, what goes on to the launcher.

A command that ends the only drafter with a state waits until that state is saved, so that nothing is trained twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dfl_mp.messages import LAUNCHER, Answer, Command, Message, name_of
from dfl_mp.protocol.coordinator import Coordinator
from dfl_mp.protocol.effects import Effect

SAVE_WITHIN_S = 60.0


class Operators:
    """`send(to, message)` is the hub's. Methods that change the machine return its effects; the clock is an
    argument."""

    def __init__(self, run_dir: Path, machine: Coordinator, send: Callable[[str, Message], bool]) -> None:
        self._checkpoints = run_dir / "checkpoints"
        self._machine = machine
        self._send = send
        self._waiting: list[tuple[float, Command]] = []
        """For a checkpoint, each until its time."""

    def take(self, command: Command, now: float) -> list[Effect]:
        """Begin a command."""
        m = self._machine
        if command.what != "checkpoint":
            if not self._ends_the_last(command):
                self._forward(command)
                return []
        elif m.ledger == 0:
            self._answer(command, 1, "no step is committed yet: there is nothing to save")
            return []
        elif m.saving is None and m.ledger in m.checkpoints:
            self._answer(command, 0, self._where(m.ledger))
            return []
        elif not m.group.applied:
            self._answer(command, 1, "no drafter has a state now: there is nothing to save")
            return []
        self._waiting.append((now + SAVE_WITHIN_S, command))
        effects = m.save_now()
        self._answer(command, None, f"saving step {m.saving[1] if m.saving else m.ledger} ...")
        return effects

    def published(self, steps: int) -> None:
        """A checkpoint is on disk under its name."""
        for _, command in self._waiting:
            if command.what == "checkpoint":
                self._answer(command, 0, self._where(steps))
            else:
                self._forward(command)
        self._waiting.clear()

    def watch(self, now: float) -> list[Effect]:
        """A save whose drafter died is ordered of another; who has waited too long waits no more."""
        m = self._machine
        if not self._waiting:
            return []
        effects = [] if m.saving is not None else m.save_now()
        late = [(until, command) for until, command in self._waiting if m.saving is None or now >= until]
        self._waiting = [entry for entry in self._waiting if entry not in late]
        for _, command in late:
            if command.what == "checkpoint":
                self._answer(command, 1, "no checkpoint: its drafter ended or was too slow")
            else:
                self._forward(command)
        return effects

    def close(self) -> None:
        """The run ends."""
        for _, command in self._waiting:
            self._answer(command, 1, "the run is ending")

    def _ends_the_last(self, command: Command) -> bool:
        """Whether steps would be lost that a checkpoint can keep."""
        m = self._machine
        last = {name_of(member) for member in m.group.applied} == {command.worker.partition(".")[0]}
        return command.what in ("remove", "restart") and last and m.ledger not in m.checkpoints

    def _forward(self, command: Command) -> None:
        if not self._send(LAUNCHER, command):
            self._answer(command, 1, "the launcher is not connected; try again")

    def _answer(self, command: Command, code: int | None, text: str) -> None:
        self._send(command.operator, Answer(operator=command.operator, code=code, text=text))

    def _where(self, steps: int) -> str:
        return f"step {steps} is saved in {self._checkpoints / f'step_{steps:08d}'}"
