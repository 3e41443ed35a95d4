"""A run on a terminal: one screen that is drawn over itself, and stays when the run is over."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from rich import live
from rich.console import Console

from launcher import last_screen
from launcher.last_screen import Ending
from launcher.screen import frame
from launcher.snapshot import Snapshot
from launcher.tail import Follower

REDRAW_S = 0.4


def possible(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether `stream` is a terminal that can be drawn on."""
    utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
    return stream.isatty() and environment.get("TERM", "dumb") not in ("dumb", "unknown", "") and utf8


class Live:
    """A display that begins with the first snapshot. What is said meanwhile stands above it."""

    def __init__(self, run_dir: Path) -> None:
        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self._live = live.Live(
            console=self._console, auto_refresh=False, vertical_overflow="crop", redirect_stdout=False
        )
        self._follower = Follower(run_dir)
        self._newest: Snapshot | None = None
        self._next = 0.0
        self._width = self._console.width

    def show(self, snapshot: Snapshot) -> None:
        """Draw the snapshot, if the last drawing is old enough."""
        self._newest = snapshot
        if time.monotonic() >= self._next:
            self._draw(snapshot)

    def _draw(self, snapshot: Snapshot) -> None:
        self._next = time.monotonic() + REDRAW_S
        width, height = self._console.size
        if width < self._width and self._live.is_started:
            self._console.clear()  # lines that were wider now take two rows: their number is not known any more
        self._width = width
        self._live.start()
        self._live.update(frame(self._follower.scene(snapshot), width, height), refresh=True)

    def say(self, text: str) -> None:
        """Lines that stay. Above a screen they are folded at words, else by the terminal, which copies paths whole."""
        self._console.print(text, soft_wrap=not self._live.is_started)

    def notice(self, text: str) -> None:
        """Nothing: the events show it."""

    def finish(self, ending: Ending) -> None:
        """The last screen takes the place of the live one."""
        if self._live.is_started:
            self._live.update(last_screen.screen(ending, self._console.width))
            self._live.stop()
        else:
            self._console.print(last_screen.screen(ending, self._console.width))

    def close(self, erase: bool = False) -> None:
        """Give the terminal back; the last drawing stays unless it is to be erased."""
        if self._live.is_started:
            if self._newest is not None and not erase:
                self._draw(self._newest)
            self._live.transient = erase
            self._live.stop()
