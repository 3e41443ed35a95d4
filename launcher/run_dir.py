"""The run's folder: made private, locked against a second launcher, its config written down, its leftovers swept."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dfl_mp.config import Config
from dfl_mp.errors import ConfigError
from dfl_mp.log import write_json
from dfl_mp.messages import TRANSPORT
from dfl_mp.transport.links import socket_path
from launcher.tail import short

RUNS = Path("runs")
LOCK = "lock"
MATHEMATICS = ("target", "drafter", "data", "optim", "train")
FREE = ("data.cache_dir", "data.prompts")
"""Fields of those sections that do not change what is trained."""


class RunDir:
    """An open run folder; `close` gives the lock back and sweeps."""

    def __init__(self, path: Path, resumed: bool, lock: int, made: Sequence[Path] = (), latest: bool = False) -> None:
        self.path = path
        self.resumed = resumed
        self._lock = lock
        self._made = made
        """Folders that this launch has made, the run's own first, those around it behind."""
        self._latest_before = _point_latest_at(path.name) if latest else None

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def accept(self) -> None:
        """The input is good: the folder stays."""
        self._made = ()

    def discard(self) -> None:
        """Remove what this launch has made, unless it was accepted. The lock is held until `close`."""
        if self._made:
            shutil.rmtree(self.path, ignore_errors=True)
            if self._latest_before is not None:
                _point_latest_at(self._latest_before)
            for folder in self._made[1:]:
                with contextlib.suppress(OSError):  # somebody else uses it by now
                    folder.rmdir()

    def close(self) -> None:
        sweep(self.path)
        os.close(self._lock)


def open_run(config: Config) -> tuple[RunDir, Config]:
    """Make or reopen the folder that `config.run` names; returns it with the config as written to `config.json`.

    Raises ConfigError: the folder cannot be used, is in use, or belongs to a run with other mathematics.
    """
    os.umask(0o077)
    path, made = _folder(config)
    lock = _take_lock(path)
    try:
        written = config.model_copy(update={"run": config.run.model_copy(update={"dir": str(path)})})
        resumed = _refuse_other_mathematics(path, written)
        (path / "logs").mkdir(mode=0o700, exist_ok=True)
        (path / TRANSPORT).unlink(missing_ok=True)  # this launch may have other luck
        write_json(path / "config.json", written.model_dump(mode="json"))
    except BaseException:
        os.close(lock)
        raise
    sweep(path)
    return RunDir(path, resumed, lock, made, latest=config.run.dir is None), written


def sweep(path: Path) -> None:
    """Remove what killed workers of this run left outside its folder."""
    sockets = socket_path(path).parent
    if not sockets.is_relative_to(path.resolve()):
        shutil.rmtree(sockets, ignore_errors=True)


def first_incarnation(path: Path) -> int:
    """One more than any incarnation that has left a log: ids of workers are never used twice."""
    numbers = (file.name.split(".")[-2] for file in (path / "logs").glob("*.*.log"))
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)


def _folder(config: Config) -> tuple[Path, list[Path]]:
    """(the run's folder, which folders had to be made for it)"""
    if config.run.dir is not None:
        if not config.run.dir.strip():
            raise ConfigError("run.dir: is empty; leave it out or name a folder")
        return _given(Path(config.run.dir).expanduser())
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{config.run.name}"
    try:
        around = _missing(RUNS.resolve())
        RUNS.mkdir(exist_ok=True)
        for name in _names(stem):
            with contextlib.suppress(FileExistsError):
                (RUNS / name).mkdir(mode=0o700)
                path = (RUNS / name).resolve()
                return path, [path, *around]
    except OSError as error:
        raise ConfigError(f"run.dir: no folder can be made in {RUNS.resolve()}: {error.strerror}") from None
    raise AssertionError("unreachable")


def _names(stem: str) -> Iterator[str]:
    yield stem
    number = 2
    while True:
        yield f"{stem}-{number}"
        number += 1


def _missing(path: Path) -> list[Path]:
    """The folder and those around it that do not exist, the innermost first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]


def _given(path: Path) -> tuple[Path, list[Path]]:
    """The user's own choice: made, or taken when it is empty or a run's. Raises ConfigError."""
    try:
        made = _missing(path.resolve())
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.stat()
        if info.st_uid != os.getuid() or info.st_mode & 0o022:
            raise ConfigError(f"run.dir: {path} belongs to somebody else or others may write to it")
        if not any(path.iterdir()):
            path.chmod(0o700)
        elif not (path / LOCK).exists():
            raise ConfigError(f"run.dir: {path} is not empty and no run of dfl-mp")
    except OSError as error:
        raise ConfigError(f"run.dir: {path}: {error.strerror}") from None
    return path.resolve(), made


def _take_lock(path: Path) -> int:
    try:
        fd = os.open(path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"run.dir: {path} cannot be written to: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(fd, 32).decode().strip()
        os.close(fd)
        raise ConfigError(f"run.dir: {path} is in use by process {holder}") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _refuse_other_mathematics(path: Path, config: Config) -> bool:
    """Whether a run is there to go on with. Raises ConfigError naming the fields that differ."""
    if not (path / "prepared.json").exists():
        return False
    try:
        before = json.loads((path / "config.json").read_text())
    except (OSError, ValueError):
        raise ConfigError(f"run.dir: {path / 'config.json'} cannot be read") from None
    now = config.model_dump(mode="json")
    changed = [
        f"{field} (was {old!r}, now {new!r})"
        for section in MATHEMATICS
        for field, old, new in _differences(section, before.get(section), now[section])
        if field not in FREE
    ]
    if changed:
        raise ConfigError(
            f"run.dir: {path} was begun with another {', '.join(changed)}; go on with make resume RUN={short(path)}, "
            "or repeat the overrides it was begun with, or choose another run.dir"
        )
    return True


def _differences(field: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(f"{field}.{key}", old.get(key), new.get(key))
    elif old != new:
        yield field, old, new


def _point_latest_at(name: str) -> str:
    """The newest run in the default place, also while it is prepared; "" for none. Returns which one it was before."""
    latest, part = RUNS / "latest", RUNS / f".latest.{os.getpid()}"
    before = os.readlink(latest) if latest.is_symlink() else ""
    part.unlink(missing_ok=True)
    if name:
        part.symlink_to(name)
        part.replace(latest)
    else:
        latest.unlink(missing_ok=True)
    return before
