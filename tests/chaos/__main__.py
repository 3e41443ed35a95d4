"""Chaos with real processes: `python -m tests.chaos --seed 0 --kills 200`. Exit code 0 when nothing is wrong.

Several runs of `--per-run` faults each, every one with its own seed, beside one undisturbed run of as many steps. A
violation is printed with the seed that repeats its faults: `--seed S --kills 1` begins with that run.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.session import Session
from tests.chaos.states import STATES


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=200, help="runs go on until so many processes were killed")
    parser.add_argument("--per-run", type=int, default=25, help="faults in one run")
    parser.add_argument("--steps", type=int, default=0, help="of each run; 0: enough for its faults")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs")
    args = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="dfl-chaos-"))
    try:
        return _chaos(args, folder)
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)


def _chaos(args: argparse.Namespace, folder: Path) -> int:
    began, steps = time.monotonic(), args.steps or 12 * args.per_run + 30
    session = Session(folder, steps, lambda text: print(text, flush=True))
    session.say(f"runs of {steps} steps in {folder}")
    try:
        seed = args.seed
        while session.kills < args.kills:
            failed = session.run(seed, args.per_run)
            so_far = f"{time.monotonic() - began:5.0f} s  seed {seed}: {session.kills} of {args.kills} kills"
            session.say(f"{so_far}  {'VIOLATION ' + failed if failed else 'ends as if undisturbed'}")
            if failed:
                again = f"--seed {seed} --kills 1 --per-run {args.per_run} --steps {steps} --keep"
                session.say(f"repeat with: python -m tests.chaos {again}")
                return 1
            seed += 1
    finally:
        session.close()
    session.say(session.table())
    return 1 if args.kills >= len(STATES) and session.never() else 0


if __name__ == "__main__":
    sys.exit(main())
