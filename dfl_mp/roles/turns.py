"""Compiling in turn: of the workers that would compile the same thing at the same time one does, the others wait."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch

import dfl_mp
from dfl_mp import compiling
from dfl_mp.errors import DeadlineError
from dfl_mp.log import say
from dfl_mp.messages import name_of
from dfl_mp.roles.common import Job
from dfl_mp.roles.worker import Tally


def code_key(what: str, *parts: object) -> str:
    """Name of compiled code: `parts` are shapes and settings; versions, the GPU and our own source are added."""
    gpu = (torch.__version__, torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    here = Path(dfl_mp.__file__).parent
    sources = [path.read_bytes() for part in ("model", "train") for path in sorted((here / part).glob("*.py"))]
    return compiling.key_of(what, gpu, parts, *sources)


def take_turn(stack: ExitStack, key: str, job: Job, tally: Tally) -> bool:
    """Wait until nobody else compiles this. Until `stack` closes the others wait for this worker, if it is the first.

    Returns whether it has to compile, as far as is known.

    Waits half of `deadline.start` at most, then goes on by itself. `tally.note` says for whom.
    """

    def waits(leader: str) -> None:
        tally.note = f"waits for {name_of(leader)} to compile"
        say(tally.note)

    turn = compiling.turn(key, job.worker)
    leads = True
    if turn is None:
        return leads
    with tally.doing("compiling"):
        try:
            leads = stack.enter_context(turn.taken(job.config.deadline.start / 2, waits))
            say("compiles for the others" if leads else "what it compiles should be in the cache")
        except DeadlineError as error:
            say(f"{error}: compiles by itself")
    return leads
