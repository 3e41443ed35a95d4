"""What memory a cell's interpreters and their compile helpers take."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil


def gpu_used_mb(gpus: Sequence[str]) -> int | None:
    """Memory in use on these GPUs, by anybody; None where `nvidia-smi` says nothing."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={','.join(gpus)}"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return sum(int(line) for line in out.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def host_mb(processes: Sequence[psutil.Process]) -> tuple[int, int]:
    """Proportional resident memory (a page that k processes share counts 1/k in each), and what of it is no file's.

    Pages of files, libraries above all, are shared with whatever else runs on the machine; the others are their own.
    """
    total = files = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        found = {line.split()[0]: int(line.split()[1]) for line in lines if line.startswith("Pss")}
        total += found.get("Pss:", 0)
        files += found.get("Pss_File:", 0)
    return total // 1024, (total - files) // 1024


@dataclass
class Memory:
    """Highest figures seen; GPU memory is what comes free when the cell is ended."""

    gpu_mb: int | None = None
    host_mb: int = 0
    host_own_mb: int = 0
    """Without pages of files, so what runs beside the cell does not change it."""
    helpers: int = 0
    """Most processes beside the interpreters themselves: Inductor's compile workers, compilers."""

    def look(self, interpreters: Sequence[psutil.Process]) -> None:
        below = [helper for root in interpreters for helper in helpers_of(root)]
        total, own = host_mb([*interpreters, *below])
        self.helpers = max(self.helpers, len(below))
        self.host_mb, self.host_own_mb = max(self.host_mb, total), max(self.host_own_mb, own)

    def as_dict(self) -> dict[str, int | None]:
        return {
            "gpu_used_mb": self.gpu_mb,
            "host_mb": self.host_mb,
            "host_own_mb": self.host_own_mb,
            "helpers": self.helpers,
        }


def helpers_of(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []
