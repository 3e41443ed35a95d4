"""Workers that are started while the run is still being prepared wait at a gate, their libraries loaded.

The gate is a pipe that is never written to: its other end is the launcher's alone, which opens the gate by closing it.
A leaf: nothing of the project but its errors.
"""

from __future__ import annotations

import os
import select

from dfl_mp.errors import DeadlineError

GATE = "DFL_GATE"
"""Environment variable `FD:SECONDS`: the pipe's read end, and how long it may stay closed."""


class Gate:
    """The launcher's side. It stays closed for `within` seconds at most."""

    def __init__(self, within: float) -> None:
        self.read_end, self._write_end = os.pipe2(os.O_CLOEXEC)
        self.setting = f"{self.read_end}:{within}"
        self.closed = True

    def open(self) -> None:
        """For all that wait, and for good."""
        if self.closed:
            os.close(self.read_end)
            os.close(self._write_end)
            self.closed = False


def pass_gate() -> None:
    """Wait until the gate opens; a worker without one goes on. Raises DeadlineError."""
    setting = os.environ.pop(GATE, None)
    if setting is None:
        return
    fd, _, within = setting.partition(":")
    opened, _, _ = select.select([int(fd)], [], [], float(within))
    os.close(int(fd))
    if not opened:
        raise DeadlineError(f"the run was not prepared within {float(within):.0f} s")
