"""The moments of a cell, as empty files that its interpreters and the benchmark see alike."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.05


@dataclass(frozen=True)
class Gate:
    """Drafters warm up beside whatever else runs, then wait for `GO`: the time in which rates are measured is theirs.

    A drafter says `warm`, then `done`; an interpreter `over` and `reported`; the benchmark opens `GO` and `REPORT`.
    """

    folder: Path
    drafters: int

    GO = "go"
    REPORT = "report"

    def say(self, moment: str, number: int) -> None:
        (self.folder / f"{moment}-{number}").touch()

    def said(self, moment: str, number: int) -> bool:
        return (self.folder / f"{moment}-{number}").exists()

    def all_said(self, moment: str) -> bool:
        return all(self.said(moment, i) for i in range(self.drafters))

    def open(self, moment: str) -> None:
        (self.folder / moment).touch()

    def opened(self, moment: str) -> float | None:
        """time.time() of its opening; None while it is closed."""
        try:
            return (self.folder / moment).stat().st_mtime
        except FileNotFoundError:
            return None

    def wait(self, moment: str, until: float) -> float | None:
        """As `opened`, as soon as it is, or None at time.time() = `until`."""
        while (at := self.opened(moment)) is None and time.time() < until:
            time.sleep(POLL_S)
        return at
