"""An operator's commands to a run that is under way: `python -m launcher kill|... [RUN] [WORKER]`.

A peer of the coordinator like any worker: a command goes to it, from there to the launcher when it is about processes,
and the answer comes back the same way. `stop`, and what concerns the coordinator itself, go by a signal."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from dfl_mp.errors import ConfigError
from dfl_mp.messages import COORDINATOR, Answer, Progress
from launcher import attach, by_signal, status
from launcher.asking import ANSWER_WITHIN_S, Asking, NotNow, Silence, What
from launcher.attach import running
from launcher.by_signal import SAY_EVERY_S
from launcher.snapshot import Snapshot

HELP = {
    "status": "state, rates and workers of a run: status [RUN] [--json]",
    "kill": "SIGKILL a worker or the coordinator; it starts again: kill [RUN] WORKER",
    "restart": "end a worker or the coordinator and start it again, also one that was removed: restart [RUN] WORKER",
    "remove": "end a worker and go on without it: remove [RUN] WORKER",
    "add-drafter": "one more drafter, on a free GPU or the CPU: add-drafter [RUN]",
    "checkpoint": "save a checkpoint now and wait for it: checkpoint [RUN]",
    "stop": "as Ctrl-C: save, then end the run: stop [RUN]",
}
OF_A_WORKER = ("kill", "restart", "remove")
SAVE_WITHIN_S = 70.0
"""The coordinator gives up after 60."""


@dataclass(frozen=True)
class Asked:
    run_dir: Path
    worker: str


def main(name: str, words: Sequence[str]) -> int:
    """Carry out one command; 0 done, 1 not now (said why). Raises ConfigError for wrong words or an unknown run."""
    as_json = "--json" in words and name == "status"
    asked = read(name, [word for word in words if not (as_json and word == "--json")])
    try:
        if name == "stop":
            by_signal.stop(asked.run_dir)
            return 0
        if name in ("kill", "restart") and asked.worker.partition(".")[0] == COORDINATOR:
            by_signal.end_coordinator(name, asked.run_dir, asked.worker)
            return 0
        return _status(asked.run_dir, as_json) if name == "status" else _order(name, asked)
    except NotNow as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1


def read(name: str, words: Sequence[str]) -> Asked:
    """`[RUN] [WORKER]`; a single word is a worker where the command takes one and it looks like one.

    Raises ConfigError.
    """
    for word in words:
        if word.startswith("-"):
            raise ConfigError(f"{name}: unknown option {word!r}")
    takes = name in OF_A_WORKER
    if len(words) > 1 + takes:
        raise ConfigError(f"{name}: too many words; usage: {HELP[name].rpartition(': ')[2]}")
    if takes and len(words) == 1 and re.fullmatch(r"((target|drafter)-\d+|coordinator)(\.\d+)?", words[0]):
        return Asked(attach.find([]), words[0])
    worker = words[1] if len(words) > 1 else ""
    return Asked(attach.find(words[:1]), worker)


def _order(name: str, asked: Asked) -> int:
    asking = Asking(asked.run_dir, cast(What, name), asked.worker)
    try:
        answer = _answer(asking, ANSWER_WITHIN_S)
        if answer.code is None:
            print(answer.text, flush=True)
            answer = _answer(asking, SAVE_WITHIN_S)
    finally:
        asking.close()
    if answer.code == 0:
        print(answer.text)
    else:
        print(f"{name}: {answer.text}", file=sys.stderr)
    return answer.code or 0


def _answer(asking: Asking, within: float) -> Answer:
    """The next answer; while it takes longer than a few seconds that is said. Raises NotNow."""
    began = time.monotonic()
    while True:
        try:
            answer = asking.next(SAY_EVERY_S)
        except Silence:
            if time.monotonic() - began >= within:
                raise
            print(f"saving, {time.monotonic() - began:.0f} s", flush=True)
            continue
        assert isinstance(answer, Answer)
        return answer


# ---- status ----------------------------------------------------------------------------------------------------------


def _status(run_dir: Path, as_json: bool) -> int:
    if not running(run_dir):
        if as_json:
            print(json.dumps(status.over(run_dir)))
            return 0
        return attach.main([str(run_dir)])
    snapshot, problem, progress = Snapshot.read(run_dir), "", None
    try:
        asking = Asking(run_dir, "status")
        try:
            progress = asking.next(ANSWER_WITHIN_S)
        finally:
            asking.close()
    except NotNow as error:
        problem = str(error)
    assert progress is None or isinstance(progress, Progress)
    seen = status.gather(run_dir, snapshot, progress)
    if as_json:
        print(json.dumps(seen))
    else:
        status.show(seen)
    if seen["phase"] in ("train", "stopping") and progress is None:
        print(f"status: {problem}; this is what was known last", file=sys.stderr)
        return 1
    return 0
