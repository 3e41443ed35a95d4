"""Run a small script as a worker on one GPU and talk to it by lines on its pipes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from queue import Empty, Queue

from launcher.compose import REPO


class Script:
    """A Python process with one visible GPU; `expect` waits for a line that begins with a word."""

    def __init__(self, source: str, gpu: int, *arguments: str) -> None:
        environment = dict(os.environ, CUDA_VISIBLE_DEVICES=str(gpu), PYTHONUNBUFFERED="1", NCCL_SOCKET_IFNAME="lo")
        environment.update(dict.fromkeys(("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING"), "0"))
        environment.update(TORCH_NCCL_PROPAGATE_ERROR="0", TORCH_NCCL_DUMP_ON_TIMEOUT="0")
        environment["PYTHONPATH"] = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", source, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: Queue[str | None] = Queue()
        self._seen: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip())
        self._lines.put(None)

    def expect(self, word: str, within: float = 60.0) -> str:
        while True:
            try:
                line = self._lines.get(timeout=within)
            except Empty:
                raise AssertionError(f"no {word!r} within {within} s; last lines: {self._seen[-12:]}") from None
            if line is None:
                raise AssertionError(f"ended before {word!r}; last lines: {self._seen[-12:]}")
            self._seen.append(line)
            if line.startswith(word):
                return line[len(word) :].strip()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
