"""Run folders' files for people and scripts: append-only JSON lines, atomic JSON files, timestamps. A leaf: no
torch."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import IO, Any


class JsonLines:
    """An append-only file of one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def append(self, record: dict[str, Any]) -> None:
        """Write one line and hand it to the kernel, so that a killed process loses none."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Wait until the disk has every line."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines; a last line that was cut off by a crash is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def write_json(path: Path, value: Any) -> None:
    """Replace the file by one rename; readers see the old or the new content."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with part.open("w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)
        f.flush()
        os.fsync(f.fileno())
    os.replace(part, path)


def fsync_path(path: Path) -> None:
    """Put a file's content, or a folder's entries, on disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def say(text: str) -> None:
    """One line for the worker's log."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
