"""Starts a cell's interpreters, bounds them in time, and watches what memory they take."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.threads_vs_processes.worker import Job

GRACE_S = 20.0
"""Between the moment at which a cell should stop by itself and its being killed."""
POLL_S = 1.0


def gpu_used_mb(gpus: Sequence[str]) -> int | None:
    """Memory in use on these GPUs, by anybody; None where `nvidia-smi` says nothing."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={','.join(gpus)}"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return sum(int(line) for line in out.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def host_mb(processes: Sequence[psutil.Process]) -> int:
    """Proportional resident memory: a page that k processes share counts 1/k in each."""
    total = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return total // 1024


@dataclass
class Memory:
    gpu_before_mb: int | None = None
    gpu_peak_mb: int = 0
    host_peak_mb: int = 0
    helpers: int = 0
    """Most processes beside the interpreters themselves: Inductor's compile workers, compilers."""

    def look(self, children: Sequence[subprocess.Popen[bytes]], gpus: Sequence[str]) -> None:
        roots = [psutil.Process(c.pid) for c in children if c.poll() is None and psutil.pid_exists(c.pid)]
        below: list[psutil.Process] = []
        for root in roots:
            try:
                below += root.children(recursive=True)
            except psutil.Error:
                continue
        self.helpers = max(self.helpers, len(below))
        self.host_peak_mb = max(self.host_peak_mb, host_mb([*roots, *below]))
        if gpus:
            self.gpu_peak_mb = max(self.gpu_peak_mb, gpu_used_mb(gpus) or 0)

    def as_dict(self) -> dict[str, int | None]:
        gpu = None if self.gpu_before_mb is None else self.gpu_peak_mb - self.gpu_before_mb
        return {"gpu_used_mb": gpu, "host_mb": self.host_peak_mb, "helpers": self.helpers}


@dataclass
class Launch:
    """The interpreters of one cell."""

    jobs: list[Job]
    cache: Path
    """Folder of the compile cache, shared by all of them."""
    gpus: list[str] = field(default_factory=list)
    """Names for CUDA_VISIBLE_DEVICES; an interpreter with one drafter sees one of them."""

    def environment(self, job: Job) -> dict[str, str]:
        cores = os.cpu_count() or 1
        env = dict(os.environ) | {"TORCHINDUCTOR_CACHE_DIR": str(self.cache)}
        env.pop("TRITON_CACHE_DIR", None)
        env["TORCHINDUCTOR_COMPILE_THREADS"] = str(max(1, min(8, cores // (2 * len(self.jobs)))))
        env["OMP_NUM_THREADS"] = "1"
        if self.gpus:
            alone = len(job.drafters) == 1
            env["CUDA_VISIBLE_DEVICES"] = self.gpus[job.drafters[0] % len(self.gpus)] if alone else ",".join(self.gpus)
        return env

    def run(self) -> tuple[bool, Memory]:
        """Wait for all, at most until `GRACE_S` after their deadline. Returns whether they had to be killed."""
        memory = Memory(gpu_before_mb=gpu_used_mb(self.gpus) if self.gpus else None)
        limit = self.jobs[0].deadline + GRACE_S
        with tempfile.TemporaryFile() as output:
            children = [self._start(job, output.fileno()) for job in self.jobs]
            ended = threading.Event()
            watcher = threading.Thread(target=self._watch, args=(children, memory, ended), daemon=True)
            watcher.start()
            try:
                killed = not _wait(children, limit)
            finally:
                for child in children:
                    _kill(child)
                ended.set()
            watcher.join(15)
            if any(child.returncode for child in children):
                output.seek(0)
                print(output.read()[-1500:].decode(errors="replace"), flush=True)
        return killed, memory

    def _start(self, job: Job, output: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "benchmarks.threads_vs_processes.worker", job.to_json()]
        return subprocess.Popen(
            command, env=self.environment(job), stdout=output, stderr=output, start_new_session=True
        )

    def _watch(self, children: list[subprocess.Popen[bytes]], memory: Memory, ended: threading.Event) -> None:
        while not ended.wait(POLL_S):
            memory.look(children, self.gpus)


def _wait(children: list[subprocess.Popen[bytes]], limit: float) -> bool:
    for child in children:
        try:
            child.wait(max(0.1, limit - time.time()))
        except subprocess.TimeoutExpired:
            return False
    return True


def _kill(child: subprocess.Popen[bytes]) -> None:
    """The interpreter with the compile helpers of its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
