"""`make bench`: every benchmark that this machine allows, one after another, each bounded in time.

    python -m benchmarks.suite [--only handoff,allreduce] [--minutes 20]

Results are written by the benchmarks themselves, as they go. One that fails or takes too long does not stop the others.
Without a GPU small sizes run, which show that all of it works and nothing about speed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec

from benchmarks.plot import main as plot
from benchmarks.results_file import gpus


@dataclass(frozen=True)
class Entry:
    """`seconds` bounds it; `gpus` is how many it needs; `small` are its arguments without a GPU, None: it needs one."""

    name: str
    arguments: tuple[str, ...]
    seconds: float
    gpus: int = 1
    small: tuple[str, ...] | None = None


CASES = ("--case", "1x2048x512", "--case", "1x4096x512", "--case", "4x4096x512")
BESIDE = ("--specforge",) if find_spec("specforge") else ()
"""SpecForge is measured where it is installed, without its dependencies: see `benchmarks/specforge.py`."""
ENTRIES = (
    Entry("step", (*CASES, *BESIDE), 300.0),
    Entry("target", (), 300.0),
    Entry("growth", ("--seconds", "150"), 200.0, small=("--size", "tiny", "--shrink", "64", "--seconds", "60")),
    Entry("handoff", (), 240.0, small=("--size", "tiny", "--packs", "2")),
    Entry("allreduce", (), 120.0, gpus=2, small=("--size", "tiny", "--seconds", "120")),
    Entry("end_to_end", (), 540.0, small=("--size", "tiny", "--parts", "fast_target", "--steps", "4")),
    Entry("threads_vs_processes", ("--size", "small", "--seconds", "240"), 300.0),
)
END_WITHIN_S = 10.0


def choose(num_gpus: int, only: frozenset[str] = frozenset()) -> tuple[list[tuple[Entry, tuple[str, ...]]], list[str]]:
    """(entries with their arguments, what is skipped and why).

    >>> [entry.name for entry, _ in choose(0)[0]]
    ['growth', 'handoff', 'allreduce', 'end_to_end']
    """
    chosen, skipped = [], []
    for entry in ENTRIES:
        if only and entry.name not in only:
            continue
        if num_gpus >= entry.gpus:
            chosen.append((entry, entry.arguments))
        elif num_gpus == 0 and entry.small is not None:
            chosen.append((entry, entry.small))
        else:
            needs = "a GPU" if entry.gpus == 1 else f"{entry.gpus} GPUs"
            skipped.append(f"{entry.name} is skipped: it needs {needs}, {num_gpus or 'none'} here")
    return chosen, skipped


def run(entry: Entry, arguments: tuple[str, ...], within: float) -> str:
    """How it ended, in words. A child that takes too long is ended with all that it started."""
    command = [sys.executable, "-m", f"benchmarks.{entry.name}", *arguments]
    print(f"== {' '.join(['python', *command[1:]])}", flush=True)
    began = time.monotonic()
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(timeout=within)
        ended = "done" if code == 0 else f"failed with code {code}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)  # a benchmark's own `finally` ends its runs
        try:
            process.wait(timeout=END_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        ended = f"cut off after {within:.0f} s"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return f"{entry.name}: {ended} ({time.monotonic() - began:.0f} s)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"of {', '.join(entry.name for entry in ENTRIES)}")
    parser.add_argument("--minutes", type=float, default=30.0, help="for all of them together")
    options = parser.parse_args()
    chosen, skipped = choose(len(gpus()), frozenset(filter(None, options.only.split(","))))
    until, ended = time.monotonic() + options.minutes * 60, []
    print("\n".join(skipped), flush=True)
    for entry, arguments in chosen:
        left = until - time.monotonic()
        if left < 30:
            ended.append(f"{entry.name} is skipped: the time is over")
            continue
        ended.append(run(entry, arguments, min(entry.seconds, left)))
    if gpus():
        plot([])
    print("\n".join([*skipped, *ended]), flush=True)
    return int(any("failed" in line or "cut off" in line for line in ended))


if __name__ == "__main__":
    sys.exit(main())
