"""Ctrl-C and SIGTERM as input of a loop, and orders that cannot go over the coordinator: a descriptor that becomes
readable, never an exception at a random point."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType

ORDERS = {"restart": signal.SIGUSR1, "kill": signal.SIGUSR2}
"""What is to happen to the coordinator."""


class Signals:
    """While open, SIGINT, SIGTERM, SIGHUP and those of `ORDERS` only make `fd` readable."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._told = False
        self._orders: list[str] = []
        self._before_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        wanted = [signal.SIGINT, signal.SIGTERM, *ORDERS.values()]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            wanted.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, _nothing) for number in wanted}

    def taken(self) -> int:
        """How many that mean the end have come since the last call.

        A terminal that closes says so more than once, by its kernel and its shell: SIGHUP only counts as the first.
        """
        count = 0
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self.fd, 4096):
                if number in ORDERS.values():
                    self._orders += [what for what, meant in ORDERS.items() if meant == number]
                elif number in self._before and not (number == signal.SIGHUP and self._told):
                    self._told = True
                    count += 1
        return count

    def orders(self) -> list[str]:
        """Those that `taken` has found since the last call."""
        orders, self._orders = self._orders, []
        return orders

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
        os.close(self.fd)
        os.close(self._write)


def _nothing(number: int, frame: FrameType | None) -> None:
    """A handler, so that the signal is caught."""
