"""Cells that start beside each other and are timed one after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from benchmarks.threads_vs_processes.drafting import LATE_S
from benchmarks.threads_vs_processes.gate import POLL_S, Gate
from benchmarks.threads_vs_processes.watch import Launch

REPORT_S = 40.0
"""For all interpreters together to look at their kernels."""


class Wave:
    """Starting and compiling takes most of a cell's time and needs few cores; the timed steps take seconds."""

    def __init__(self, launches: Sequence[Launch], start_by: float, turn_s: float) -> None:
        self.launches, self.start_by, self.turn_s = launches, start_by, turn_s
        self.beside = [0] * len(launches)
        """Cells that were still at work during the timed steps of each; a rate beside others cannot be compared."""
        self.turn_taken = [False] * len(launches)

    def run(self) -> None:
        """Consumes launches that have not started; all have ended afterwards, however this is left.

        Waits for: all drafters warmed up, the timed steps of one cell after the other, all kernels named.
        """
        try:
            for launch in self.launches:
                launch.start()
            until(self.start_by, lambda: all(launch.ready() for launch in self.launches))
            for launch in self.launches:
                launch.rest()
            for number in range(len(self.launches)):
                self._turn(number)
            for launch in self.launches:
                launch.look()
                launch.gate.open(Gate.REPORT)
            until(time.time() + REPORT_S, lambda: all(launch.reported() for launch in self.launches))
        finally:
            for launch in self.launches:
                launch.end()

    def _turn(self, number: int) -> None:
        launch, before = self.launches[number], self._busy(number)
        launch.gate.open(Gate.GO)
        launch.hangs = not until(time.time() + self.turn_s + 3 * LATE_S, launch.over)
        self.beside[number] = max(before, self._busy(number))
        self.turn_taken[number] = True

    def _busy(self, number: int) -> int:
        """Others that neither wait for their turn nor have had it."""
        others = [launch for i, launch in enumerate(self.launches) if i != number]
        return sum(not (launch.ready() or launch.over()) or launch.hangs for launch in others)


def until(end: float, happened: Callable[[], bool]) -> bool:
    """Wait; returns whether it had happened by time.time() = `end`."""
    while not happened():
        if time.time() > end:
            return False
        time.sleep(POLL_S)
    return True
