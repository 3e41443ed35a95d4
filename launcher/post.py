"""The launcher's end of the bus: one place to wait for messages, deaths and signals; knows when the coordinator has to
be told everything again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from dfl_mp.errors import RefusedMessage
from dfl_mp.messages import LAUNCHER, Message
from dfl_mp.transport.links import Link


class Post(Link):
    """A Link that also waits for other descriptors. `greeting` gives the messages that begin every new link."""

    def __init__(self, run_dir: Path, greeting: Callable[[], Sequence[Message]]) -> None:
        self._watched: set[int] = set()
        self._greeting = greeting
        self._greeted = False
        super().__init__(run_dir, LAUNCHER)

    def _open(self) -> None:
        super()._open()
        for fd in self._watched:
            self._poller.register(fd, zmq.POLLIN)

    def watch(self, fd: int) -> None:
        """Return from `receive` when `fd` is readable."""
        self._watched.add(fd)
        self._poller.register(fd, zmq.POLLIN)

    def unwatch(self, fd: int) -> None:
        self._watched.discard(fd)
        self._poller.unregister(fd)

    def anew(self) -> None:
        """Begin a new link: the coordinator is another one, or has lost what was sent."""
        self.reopen()
        self._greeted = False

    def greet(self) -> bool:
        """Send the greeting once there is a coordinator. False while there is none."""
        if not self._greeted and self.connected(within=0):
            self._greeted = all(self.send(message, within=0) for message in self._greeting())
        return self._greeted

    def tell(self, message: Message) -> bool:
        """Send to the coordinator. False when it could not be: the next greeting has to say it."""
        if not self._greeted:
            return False
        if self.send(message, within=0):
            return True
        self.anew()
        return False

    def collect(self, within: float) -> list[Message]:
        """All messages that are there, waiting `within` seconds for the first; unreadable ones are dropped."""
        messages: list[Message] = []
        while True:
            was_broken = self.broken
            try:
                message = self.receive(within)
            except RefusedMessage:
                message = None
            if message is not None:
                messages.append(message)
            elif self.broken == was_broken:
                return messages
            within = 0
