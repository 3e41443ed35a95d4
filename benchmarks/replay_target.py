"""A target that fills its ring once with random features and then calls every pack computed at once: drafters are
measured with features that never make them wait. `python -m benchmarks.replay_target train ...` is the launcher with
it in the place of the target.

consumes: Compute(pack, slot)
waits for: an order of the coordinator
unblocked by: a free slot
produces: FeaturesReady, at once; what is in the slot belongs to no pack
"""

from __future__ import annotations

import sys

import torch

from dfl_mp.blackbox import BlackBox
from dfl_mp.errors import ConfigError
from dfl_mp.protocol.target import Target
from dfl_mp.roles.common import Job, begin, device, exit_code_of, leave
from dfl_mp.roles.worker import Control, end_process_on_thread_error
from dfl_mp.transport.ring import RingOwner

MODULE = "benchmarks.replay_target"


def make_ring(job: Job, on: torch.device) -> RingOwner:
    """A ring as a target's, its slots filled."""
    p, c = job.prepared, job.config
    shape = (p.rows_per_pack, p.row_tokens, p.target.hidden_size * len(p.target.layer_ids))
    layout = (c.cluster.slots_per_target, shape, c.target.dtype)
    if on.type == "cuda" and c.cluster.transport == "auto":
        ring = RingOwner.on_cuda(on, *layout)
    else:
        ring = RingOwner.on_shm(job.worker, *layout)
    for i in range(c.cluster.slots_per_target):
        ring.slot(i).normal_()
    if on.type == "cuda":
        torch.cuda.synchronize(on)
    return ring


def serve(job: Job) -> None:
    """Until the coordinator says Stop."""
    box, ring = BlackBox(job.run_dir, job.worker), make_ring(job, device())
    machine = Target(ring.handle)
    control = Control(job.run_dir, job.worker, machine)
    control.start()
    box.ready()
    with control.tally.doing("idle"):
        while control.wait_for(machine.next_compute) is not None:
            control.tally.packs += 1
            control.report(machine.computed)
    control.close()
    ring.close()


def launch(arguments: list[str]) -> int:
    """The launcher with this module in the place of the target's."""
    from launcher import __main__ as cli
    from launcher import train
    from launcher.crew import MODULES

    modules = {**MODULES, "target": MODULE}
    cli.COMMANDS["train"] = ("", lambda overrides: train.main(overrides, modules))
    return cli.run(arguments)


def main() -> int:
    if sys.argv[1:2] == ["train"]:
        return launch(sys.argv[1:])
    end_process_on_thread_error()
    try:
        serve(begin(sys.argv))
    except ConfigError as error:
        return exit_code_of(error)
    return 0


if __name__ == "__main__":
    leave(main())
