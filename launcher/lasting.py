"""Output that outlives its reader: a closed terminal or pipe ends no run."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, TextIO, cast

GONE = (errno.EIO, errno.EPIPE)
"""What a write says of a terminal that was closed, and of a pipe that nobody reads any more."""


class Lasting:
    """A text stream whose descriptor becomes /dev/null at the first write that nobody can read: no write fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._let_go(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._let_go(error)

    def _let_go(self, error: OSError) -> None:
        """What is still in the stream's buffer goes to /dev/null too."""
        if error.errno not in GONE:
            raise error
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, self._stream.fileno())
        os.close(null)
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def install() -> None:
    """Make stdout and stderr of this process lasting, for good."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed when this process began
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif not isinstance(stream, Lasting):
            setattr(sys, name, cast(TextIO, Lasting(stream)))
