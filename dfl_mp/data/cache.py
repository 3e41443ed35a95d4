"""A folder that exists whole or not at all, named by the hash of all that went into it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from dfl_mp.errors import ConfigError

_STAGING = ".staging-"


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def key_of(parts: dict[str, Any]) -> str:
    """16 hex digits that change with any part."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder` that takes its name by one rename when the block ends well.

    If the block fails nothing is left, and what a killed process left is removed by the next one. Of two processes that
    make the same folder at once, the first to finish names it, and the other's copy is dropped. Raises ConfigError
    naming `data.cache_dir` when nothing can be made there.
    """
    stage = folder.parent / f"{_STAGING}{folder.name}-{os.getpid()}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_orphans(folder.parent)
        stage.mkdir(mode=0o700)
    except OSError as error:
        raise ConfigError(f"data.cache_dir: {folder.parent}: {error.strerror}") from None
    try:
        yield stage
        _sync(stage)
        try:
            stage.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _remove_orphans(parent: Path) -> None:
    for left in parent.glob(f"{_STAGING}*"):
        pid = left.name.rpartition("-")[2]
        if pid.isdigit() and (int(pid) == os.getpid() or not psutil.pid_exists(int(pid))):
            shutil.rmtree(left, ignore_errors=True)


def _sync(folder: Path) -> None:
    """The contents reach the disk before the name does."""
    for path in (*folder.iterdir(), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
