"""What a worker's start consists of, in seconds. A leaf: no torch, because the clock runs while torch loads."""

from __future__ import annotations

import os
import time
from pathlib import Path

_LOADED = time.monotonic()


def process_age_s() -> float:
    """Seconds since this process was made, to some 10 ms; where /proc does not say, since this module was loaded."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, IndexError, AttributeError):
        return time.monotonic() - _LOADED


class Startup:
    """`mark(part)` ends a part; the first begins with the process. `seconds` keeps them in order.

    Parts of a drafter: python (interpreter and imports), libraries (CUDA context and compiler), prepared (until the run
    is), load, wait (for the worker that compiles), compile, proof.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._ended = 0.0

    def mark(self, part: str) -> float:
        """The seconds of the part that ends now."""
        now = process_age_s()
        self.seconds[part] = round(now - self._ended, 2)
        self._ended = now
        return self.seconds[part]
