"""Where compiled code is kept, and who compiles first. A leaf: no torch, whose environment is set before it loads.

Workers that are going to compile the same thing meet at one lock file in the shared cache: the first is the leader and
compiles, the others wait for it and then find its code in the cache, all at once. The kernel releases the lock of a
dead leader; then another one leads.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dfl_mp.errors import ConfigError, DeadlineError

INDUCTOR, TRITON, THREADS = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"
FLASH, FLASH_ON = "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"
CACHES = (INDUCTOR, TRITON, FLASH)
MOST_THREADS = 8
LOOK_EVERY_S = 0.05
"""flock has no deadline of its own, so it is tried this often."""


def compile_threads(cores: int, leaders: int) -> int:
    """Compile helpers of each worker when `leaders` of them compile at the same time; torch would take 32 each.

    >>> compile_threads(16, 1), compile_threads(192, 2), compile_threads(2, 3)
    (8, 8, 1)
    """
    return max(1, min(MOST_THREADS, cores // (2 * max(1, leaders))))


def environment(base: Mapping[str, str], setting: str | None, threads: int) -> dict[str, str]:
    """What is to be added to `base`: the shared cache and the compile helpers. What the user has set stays.

    `setting` is `cluster.compile_cache`; None: `dfl-mp/compile` in the user's cache folder. Makes the folder, for its
    owner alone. Raises ConfigError when that cannot be done.
    """
    added = {} if THREADS in base else {THREADS: str(threads)}
    if INDUCTOR not in base:
        added[INDUCTOR] = str(_folder(base, setting))
    cache = Path(base.get(INDUCTOR) or added[INDUCTOR])
    if TRITON not in base:
        added[TRITON] = str(cache / "triton")
    if FLASH not in base and FLASH_ON not in base:
        added |= {FLASH: str(cache / "flash"), FLASH_ON: "1"}
    return added


def _folder(base: Mapping[str, str], setting: str | None) -> Path:
    if setting is not None:
        return private_folder(Path(setting).expanduser().absolute())
    own = Path(base.get("XDG_CACHE_HOME") or Path(base.get("HOME") or "/nonexistent") / ".cache")
    try:
        return private_folder(own / "dfl-mp" / "compile")
    except ConfigError:
        return private_folder(Path(tempfile.gettempdir()) / f"dfl-mp-compile-{os.getuid()}")


def private_folder(path: Path) -> Path:
    """The folder, made if need be, closed to others: what lies in it is run. Raises ConfigError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_uid != os.getuid():
            raise ConfigError(f"cluster.compile_cache: {path} belongs to another user, whose code would be run")
        path.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"cluster.compile_cache: {path} cannot be used: {error.strerror}") from None
    return path


def key_of(*parts: object) -> str:
    """Name of what is compiled: the same parts make the same code."""
    return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()[:24]


class Turn:
    """The lock of one key. Its file holds the leader's name and, from the moment that the code is in the cache, DONE.

    >>> with Turn(folder, key, "drafter-0.1").taken(within=600.0, on_wait=print) as leads:  # doctest: +SKIP
    ...     compile_it()
    """

    DONE = b"\ncompiled"

    def __init__(self, folder: Path, key: str, worker: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path, self._worker = folder / f"{key}.lock", worker

    @contextlib.contextmanager
    def taken(self, within: float, on_wait: Callable[[str], None]) -> Iterator[bool]:
        """Yields whether this worker leads; if the block ends without an exception, the others may go.

        `on_wait` is told whom this worker waits for. Raises DeadlineError when the leader is not done in time.
        """
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            leads = self._come_to_it(fd, within, on_wait)
            if not leads:
                fcntl.flock(fd, fcntl.LOCK_UN)
            yield leads
            if leads:
                self._write(fd, self._worker.encode() + self.DONE)
        finally:
            os.close(fd)

    def _come_to_it(self, fd: int, within: float, on_wait: Callable[[str], None]) -> bool:
        """Wait until the lock is free: to lead, or to find that the code is there."""
        end, told = time.monotonic() + within, ""
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._read(fd).endswith(self.DONE):
                    return False
                self._write(fd, self._worker.encode())
                return True
            leader = self._read(fd).removesuffix(self.DONE).decode(errors="replace")
            if leader and leader != told:
                on_wait(leader)
                told = leader
            if time.monotonic() > end:
                raise DeadlineError(f"{leader or 'another worker'} has not compiled within {within:.0f} s")
            time.sleep(LOOK_EVERY_S)

    @staticmethod
    def _read(fd: int) -> bytes:
        return os.pread(fd, 256, 0)

    @staticmethod
    def _write(fd: int, content: bytes) -> None:
        """The longer content is written before the end is cut, so that no reader sees DONE too early."""
        os.pwrite(fd, content, 0)
        os.ftruncate(fd, len(content))


def turn(key: str, worker: str) -> Turn | None:
    """The turn in the cache of this process's environment; None without one (a worker started by hand)."""
    cache = os.environ.get(INDUCTOR)
    return Turn(Path(cache) / "leaders", key, worker) if cache else None
