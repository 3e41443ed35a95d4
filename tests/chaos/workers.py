"""What target and drafter share: the states of a link."""

from __future__ import annotations

from dfl_mp.messages import Message
from dfl_mp.roles.worker import Control
from dfl_mp.transport.links import Link
from tests.chaos.mines import Mines


def lay(mines: Mines, said: dict[type[Message], str]) -> None:
    """`said`: the state after a message of that class was sent."""
    greet, send = Control._greet, Link.send

    def greet_(self: Control) -> None:
        mines.pass_by("before_hello")
        greet(self)

    def send_(self: Link, message: Message, within: float = 1.0) -> bool:
        done = send(self, message, within)
        if type(message) in said:
            mines.pass_by(said[type(message)])
        return done

    Control._greet, Link.send = greet_, send_  # type: ignore[method-assign]
