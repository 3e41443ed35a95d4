"""What a run costs the machine while it goes: GPUs by nvidia-smi, memory and helper processes by psutil."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil

EVERY_MS = 500
QUERY = ("nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits")


class MachineWatch:
    """`with watching(pid) as watch: ...`; `watch.found(since)` afterwards or meanwhile.

    `utilization` is nvidia-smi's: the share of time in which some kernel ran, not how well it used the GPU.
    """

    def __init__(self, pid: int) -> None:
        self.gpu: list[tuple[float, str, float, float]] = []
        """(time, index, utilization in %, MiB)"""
        self.host: list[tuple[float, float, int, int]] = []
        """(time, MiB in use on the machine, workers, their helpers)"""
        self._root, self._over = pid, threading.Event()
        self._before = _used_mib()
        self._smi: subprocess.Popen[str] | None = None
        if shutil.which(QUERY[0]):
            command = [*QUERY, "-lms", str(EVERY_MS)]
            self._smi = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            threading.Thread(target=self._read, args=(self._smi,), daemon=True).start()
        self._looker = threading.Thread(target=self._look, daemon=True)
        self._looker.start()

    def _read(self, smi: subprocess.Popen[str]) -> None:
        assert smi.stdout is not None
        for line in smi.stdout:
            with contextlib.suppress(ValueError):
                index, used, memory = line.split(",")
                self.gpu.append((time.monotonic(), index.strip(), float(used), float(memory)))

    def _look(self) -> None:
        while not self._over.wait(EVERY_MS / 1e3):
            workers = helpers = 0
            with contextlib.suppress(psutil.Error):
                for process in psutil.Process(self._root).children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        if "dfl_mp.lifeline" in process.cmdline():
                            workers += 1
                        else:
                            helpers += 1
            self.host.append((time.monotonic(), _used_mib() - self._before, workers, helpers))

    def end(self) -> None:
        self._over.set()
        self._looker.join(timeout=5.0)
        if self._smi is not None:
            self._smi.terminate()
            self._smi.wait()

    def found(self, since: float = 0.0) -> dict[str, Any]:
        """Utilization since then; peaks over the whole time."""
        names = sorted({index for _, index, _, _ in self.gpu})
        used = {i: [u for t, index, u, _ in self.gpu if index == i and t >= since] for i in names}
        return {
            "gpu_utilization": {i: round(sum(u) / len(u) / 100, 3) for i, u in used.items() if u},
            "gpu_peak_mib": {i: max(m for _, index, _, m in self.gpu if index == i) for i in names},
            "host_peak_mib": round(max((m for _, m, _, _ in self.host), default=0.0)),
            "helpers_peak": max((h for *_, h in self.host), default=0),
            "workers_peak": max((w for _, _, w, _ in self.host), default=0),
        }


def _used_mib() -> float:
    memory = psutil.virtual_memory()
    return (memory.total - memory.available) / (1 << 20)


@contextlib.contextmanager
def watching(pid: int) -> Iterator[MachineWatch]:
    watch = MachineWatch(pid)
    try:
        yield watch
    finally:
        watch.end()
