"""A run that goes on without its terminal: `train --detach` starts it, waits until its input is known to be good, and
returns. The launcher in the new session reports over a pipe and writes its lines to `RUN/console.log`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.tail import short

OPTION = "--detach"
REPORT = "--report-to="
"""Given to the launcher in the new session: the pipe's write end."""
LOG = "console.log"


class Report:
    """The detached launcher's side."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd

    def move_into(self, run_dir: Path) -> None:
        """From here on all output goes to the run's `console.log`."""
        log = os.open(run_dir / LOG, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        begins = os.fstat(log).st_size
        for fd in (1, 2):
            os.dup2(log, fd)
        os.close(log)
        self._tell(f"run {begins} {run_dir}")

    def prepared(self) -> None:
        """The input is good: whoever waits may go."""
        self._tell("prepared")
        os.close(self._fd)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # who started the run did not wait: it goes on
            os.write(self._fd, f"{line}\n".encode())


def main(overrides: Sequence[str]) -> int:
    """Start the run in a session of its own; 0 when it trains, else the exit code that it had in the foreground."""
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "launcher", "train", f"{REPORT}{write_end}", *overrides]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=(write_end,))
    os.close(write_end)
    run_dir, said, prepared = None, None, False
    with os.fdopen(read_end) as report, contextlib.ExitStack() as opened:
        try:
            for line in report:
                prepared = line == "prepared\n"
                if not prepared:
                    _, begins, path = line.rstrip("\n").split(" ", 2)
                    run_dir = Path(path)
                    said = opened.enter_context((run_dir / LOG).open("rb"))  # a wrong input removes the run's folder
                    said.seek(int(begins))
        except KeyboardInterrupt:
            child.terminate()
        code = 0 if prepared else child.wait()
        if said is not None:
            told = said.read().decode(errors="replace")
            print(told, end="", file=sys.stdout if prepared else sys.stderr, flush=True)
    if run_dir is not None and prepared:
        print("\n".join(farewell(run_dir, child.pid)), flush=True)
    return code if code >= 0 else 1


def farewell(run_dir: Path, pid: int) -> list[str]:
    """What to know of a run that has been left alone."""
    latest = run_dir.parent / "latest"
    here = "" if latest.exists() and latest.resolve() == run_dir else f" RUN={short(run_dir)}"
    return [
        f"detached    process {pid}, output in {short(run_dir / LOG)}",
        f"watch       make attach{here}",
        f"stop        make stop{here}",
    ]
