"""The race with its moments forced: two drafters, one in the middle of its compile's trace while the other works.

    python -m benchmarks.threads_vs_processes.forced FOLDER compiler trainer   two threads of one process
    python -m benchmarks.threads_vs_processes.forced FOLDER compiler           one of two; `trainer` is another

Both roles do the same as threads and as processes, on a CPU; they meet through files in FOLDER. The trainer takes two
steps while the other one traces, then looks at its loss with flex_attention uncompiled, which saves the tracing flag,
turns it off, waits for the compile lock, and puts back what it saved. By then the trace is over: the flag stays on.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.fx._symbolic_trace as symbolic_trace
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from benchmarks.threads_vs_processes.cells import Cell
from benchmarks.threads_vs_processes.drafting import Drafting, Journal, short
from benchmarks.threads_vs_processes.sizes import SIZES, make_inputs, make_step
from benchmarks.threads_vs_processes.workarounds import compile_forward
from dfl_mp.model.blocks import make_blocks
from dfl_mp.model.mask import make_masks

MEET_S = 120.0
"""For the other to come: it may be a process that still imports torch."""
FLAG_S = 2.0
"""How long the trace waits for the other to turn the flag off; only in one process will it ever see that."""
BEFORE, DURING, AFTER = 1, 2, 3
"""Steps that each drafter tries."""


class Meeting:
    """Moments, as empty files that processes and threads see alike."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def announce(self, moment: str) -> None:
        (self.folder / moment).touch()

    def wait_for(self, moment: str, within: float = MEET_S) -> None:
        end = time.monotonic() + within
        while not (self.folder / moment).exists():
            if time.monotonic() > end:
                raise TimeoutError(f"{moment} not within {within:.0f} s")
            time.sleep(0.01)


def compiler(drafting: Drafting, meeting: Meeting) -> None:
    """Compiles for the first time, pausing inside the trace until the trainer is where it should be."""

    def paused_silu(x: Tensor) -> Tensor:
        meeting.announce("tracing")
        meeting.wait_for("evaluating")
        end = time.monotonic() + FLAG_S
        while getattr(symbolic_trace, "_is_fx_tracing_flag", False) and time.monotonic() < end:
            time.sleep(0.01)
        return x * torch.sigmoid(x)

    meeting.wait_for("warm")
    backend: Any = aot_autograd(
        fw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        decompositions={torch.ops.aten.silu.default: paused_silu},
    )
    compile_forward(drafting.step, Cell("threads", BEFORE), backend)
    attempts(drafting, 0, BEFORE)
    meeting.wait_for("evaluated")
    drafting.journal.write("after")
    attempts(drafting, BEFORE, AFTER)


def trainer(drafting: Drafting, meeting: Meeting) -> None:
    """Has compiled before, and trains on while the other one traces."""
    compile_forward(drafting.step, Cell("threads", BEFORE), "aot_eager")
    attempts(drafting, 0, BEFORE)
    meeting.announce("warm")
    meeting.wait_for("tracing")
    drafting.journal.write("during")
    attempts(drafting, BEFORE, DURING)
    meeting.announce("evaluating")
    evaluate(drafting)
    meeting.announce("evaluated")
    drafting.journal.write("after")
    attempts(drafting, BEFORE + DURING, AFTER)


def attempts(drafting: Drafting, first: int, count: int) -> None:
    for number in range(first, first + count):
        drafting.attempt(number, nullcontext())


@torch.no_grad()
def evaluate(drafting: Drafting) -> None:
    """The drafter's forward with flex_attention as it is without `torch.compile`."""
    step, (features, pack) = drafting.step, drafting.inputs[0]
    blocks = make_blocks(pack, step.spec.block_size, step.spec.mask_token_id, step.gamma)
    masks = make_masks(pack, blocks, step.spec, "flex")
    embeds_BMH = step.ends.embed(blocks.ids_BNK.flatten(1))
    step.drafter.forward(features, embeds_BMH, pack.position_BS, blocks.positions_BNK.flatten(1), masks)


ROLES = {"compiler": compiler, "trainer": trainer}


def play(role: str, folder: Path) -> None:
    journal = Journal(folder, sorted(ROLES).index(role))
    try:
        device = torch.device("cpu")
        drafting = Drafting(make_step(SIZES["tiny"], device), make_inputs(SIZES["tiny"], "fixed", device), journal)
        ROLES[role](drafting, Meeting(folder))
        journal.write("end")
    except Exception as error:
        journal.write("broken", error=short(error))
        raise


def main() -> None:
    torch.set_num_threads(1)
    folder, roles = Path(sys.argv[1]), sys.argv[2:]
    threads = [threading.Thread(target=play, args=(role, folder), daemon=True) for role in roles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * MEET_S)
    os._exit(any(thread.is_alive() for thread in threads))


if __name__ == "__main__":
    main()
