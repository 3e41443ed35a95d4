"""A worker dies with its launcher, whatever kills that. A leaf: no torch, nothing of the project.

Two lines to the launcher: the kernel's parent-death signal, and a pipe whose other end only the launcher holds, which
also covers the moment before the signal is asked for.

    python -m dfl_mp.lifeline MODULE [ARG ...]

runs MODULE as `python -m` would, held on before its imports begin: torch alone takes seconds.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading

DEATH_PIPE = "DFL_DEATH_PIPE"
"""Environment variable with the inherited descriptor of the pipe's read end."""
_PR_SET_PDEATHSIG = 1


def hold_on(parent_pid: int) -> None:
    """From now on this process ends when `parent_pid`, its parent, does. Ends it at once if that has happened already.

    Without a death pipe in the environment (a worker started by hand) nothing is done.
    """
    pipe = os.environ.pop(DEATH_PIPE, None)
    if pipe is None:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)
    os.set_inheritable(int(pipe), False)
    threading.Thread(target=_wait_for_the_end, args=(int(pipe),), name="lifeline", daemon=True).start()


def _wait_for_the_end(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def main() -> None:
    hold_on(os.getppid())
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
