"""What was skipped while reading and tokenising, and how far a long pass has come. A leaf: standard library only."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

KEEP_FIRST = 20
"""Rows named one by one; the others are only counted."""


@dataclass
class Report:
    """Counts of one file. `first` names the first skipped rows as `line 3: unknown role (wizard)`."""

    lines: int = 0
    """Lines that are not blank."""
    kept: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Rows by reason."""
    first: list[str] = field(default_factory=list)

    def skip(self, line: int, reason: str, detail: str = "") -> None:
        self.skipped[reason] += 1
        if len(self.first) < KEEP_FIRST:
            self.first.append(f"line {line}: {reason}" + (f" ({shorten(detail)})" if detail else ""))

    def as_dict(self) -> dict[str, Any]:
        return {"lines": self.lines, "kept": self.kept, "skipped": dict(self.skipped), "first": list(self.first)}


def shorten(text: str, most: int = 80) -> str:
    """One line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


class Progress:
    """Says every `every_s` seconds how far a pass is: `tokenising: 1,200 of 50,000 (2 %), 90 s left`."""

    def __init__(
        self,
        what: str,
        total: int,
        every_s: float,
        say: Callable[[str], None] = lambda line: print(line, flush=True),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._total, self._every_s, self._say, self._clock = what, total, every_s, say, clock
        self._began = self._said = clock()

    def update(self, done: int) -> None:
        now = self._clock()
        if now - self._said < self._every_s or done >= self._total:
            return
        self._said = now
        left = (now - self._began) / max(done, 1) * (self._total - done)
        share = 100 * done / max(self._total, 1)
        self._say(f"{self._what}: {done:,} of {self._total:,} ({share:.0f} %), {left:.0f} s left")
