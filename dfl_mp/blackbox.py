"""Sixteen bytes per worker that outlive it: whether it got ready, and which pack it was computing. A leaf: no torch.

The worker writes into a memory-mapped file; the launcher reads it after the worker is reaped, whatever killed it.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LAYOUT = struct.Struct("<qq")
_NOTHING = -1


def path_of(run_dir: Path, worker: str) -> Path:
    return run_dir / ".now" / worker


class BlackBox:
    """The worker's end."""

    def __init__(self, run_dir: Path, worker: str) -> None:
        path = path_of(run_dir, worker)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.ftruncate(fd, _LAYOUT.size)
        self._map = mmap.mmap(fd, _LAYOUT.size)
        os.close(fd)
        self._start = path.with_suffix(f"{path.suffix}.start")
        self._ready = 0
        self.computing(None)

    def ready(self, start: Mapping[str, Any] | None = None) -> None:
        """Start-up is over: model loaded, step compiled. `start` is what the event `worker_ready` says of it."""
        if start is not None:
            self._start.write_text(json.dumps(start))
        self._ready = 1
        self.computing(None)

    def computing(self, pack: int | None) -> None:
        """What is being computed from now on."""
        self._map[:] = _LAYOUT.pack(self._ready, _NOTHING if pack is None else pack)


def read(run_dir: Path, worker: str) -> tuple[bool, int | None]:
    """(got ready, pack in computation) of a dead worker; (False, None) if it never wrote."""
    try:
        ready, pack = _LAYOUT.unpack(path_of(run_dir, worker).read_bytes())
    except (FileNotFoundError, struct.error):
        return False, None
    return bool(ready), None if pack == _NOTHING else pack


def start_of(run_dir: Path, worker: str) -> dict[str, Any]:
    """What a ready worker said of its start; empty if it said nothing."""
    path = path_of(run_dir, worker)
    try:
        found = json.loads(path.with_suffix(f"{path.suffix}.start").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    assert isinstance(found, dict)
    return found
