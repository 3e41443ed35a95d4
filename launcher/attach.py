"""`python -m launcher attach [RUN]`: the screen of a run that another process runs, from the files it leaves."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from dfl_mp.errors import ConfigError
from dfl_mp.log import read_lines
from launcher import summary
from launcher.console import display
from launcher.live import Live
from launcher.plain import Plain
from launcher.run_dir import LOCK, RUNS
from launcher.snapshot import Snapshot
from launcher.tail import short

EVERY_S = 0.5
PLAIN_EVERY_S = 3.0


def main(arguments: Sequence[str]) -> int:
    """Watch the run until it ends or Ctrl-C; a run that is over shows its last screen. Never touches the run.

    0, or 1 when the run was over and had not ended well. Raises ConfigError when there is no run.
    """
    run_dir = find(arguments)
    screen = display(run_dir, PLAIN_EVERY_S)
    try:
        while running(run_dir):
            snapshot = Snapshot.read(run_dir)
            if snapshot is not None and snapshot.phase != "over":
                screen.show(snapshot)
            time.sleep(EVERY_S)
        return _over(run_dir, screen)
    except KeyboardInterrupt:
        screen.close()
        screen.say(f"the run goes on; again: make attach RUN={short(run_dir)}; stop it: make stop RUN={short(run_dir)}")
        return 0
    finally:
        screen.close()


def find(arguments: Sequence[str]) -> Path:
    """The folder named, or the newest run's. Raises ConfigError."""
    if len(arguments) > 1:
        raise ConfigError(f"attach: one run at most, not {shlex.join(arguments)}")
    path = Path(arguments[0] if arguments else RUNS / "latest").expanduser()
    if not (path / LOCK).exists():
        raise ConfigError(f"RUN: {path} is no run of dfl-mp" if arguments else "RUN: there is no run in runs/ yet")
    return path.resolve()


def launcher_of(run_dir: Path) -> int | None:
    """Process id that the run's lock names."""
    text = (run_dir / LOCK).read_text().strip()
    return int(text) if text.isdecimal() else None


def running(run_dir: Path) -> bool:
    """Whether the launcher that the lock names is alive."""
    pid = launcher_of(run_dir)
    try:
        return pid is not None and b"launcher" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _over(run_dir: Path, screen: Live | Plain) -> int:
    ends = [event for event in read_lines(run_dir / "events.jsonl") if event["event"] in ("run_started", "run_stopped")]
    last = ends[-1] if ends else {"event": "run_started"}
    if last.get("reason") == "done" and (run_dir / "summary.json").exists():
        screen.finish(summary.ending(run_dir))
        return 0
    screen.close()
    if last["event"] == "run_started":
        screen.say("the launcher of this run is gone without a word: it was killed")
    else:
        screen.say(f"run {last['reason']}\n{last.get('error') or ''}".rstrip())
    steps = len(read_lines(run_dir / "metrics.jsonl"))
    screen.say(f"{steps} steps are committed; logs are in {short(run_dir / 'logs')}")
    screen.say(f"go on: make resume RUN={short(run_dir)}")
    return 1
