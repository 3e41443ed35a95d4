"""A target worker: runs the frozen target on leased packs and fills slots of its ring.

    python -m dfl_mp.roles.target RUN_DIR target-0.1

consumes: Compute(pack, slot)
waits for: an order of the coordinator
unblocked by: a free slot, which is the only permission to compute
produces: features in the slot, then FeaturesReady
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from dfl_mp.blackbox import BlackBox
from dfl_mp.data.packs import PackStore
from dfl_mp.errors import ConfigError, TransportError
from dfl_mp.log import say
from dfl_mp.messages import Compute
from dfl_mp.model.target import load_feature_target
from dfl_mp.protocol.target import Target
from dfl_mp.roles.common import TRANSPORT, Job, begin, device, exit_code_of, leave
from dfl_mp.roles.tensors import to_tensors
from dfl_mp.roles.worker import Control, end_process_on_thread_error
from dfl_mp.transport.ring import RingOwner


class TargetRole:
    """See the module."""

    def __init__(self, job: Job) -> None:
        self.job, self.device = job, device()
        self.box = BlackBox(job.run_dir, job.worker)
        self.store = PackStore.open(Path(job.prepared.data_dir))
        self.ring = self._make_ring()
        self.machine = Target(self.ring.handle)
        self.control = Control(job.run_dir, job.worker, self.machine)

    def _make_ring(self) -> RingOwner:
        """On CUDA IPC where there is a GPU and nothing spoke against it, else in shared memory."""
        p, c = self.job.prepared, self.job.config
        shape = (p.rows_per_pack, p.row_tokens, p.target.hidden_size * len(p.target.layer_ids))
        layout = (c.cluster.slots_per_target, shape, c.target.dtype)
        ipc = self.device.type == "cuda" and c.cluster.transport == "auto"
        if ipc and not (self.job.run_dir / TRANSPORT).exists():
            try:
                return RingOwner.on_cuda(self.device, *layout)
            except TransportError as error:
                say(f"{error}; features go through shared memory")
        return RingOwner.on_shm(self.job.worker, *layout)

    def run(self) -> None:
        self.control.start()
        self.target = load_feature_target(self.job.prepared.target, self.job.config.target, self.device)
        self.box.ready()
        say(f"ready on {self.device}")
        try:
            while (order := self._next()) is not None:
                with self.control.tally.doing("working"):
                    self._compute(order)
        finally:
            self.control.close()
            self.ring.close()

    def _next(self) -> Compute | None:
        with self.control.tally.doing("idle"):
            return self.control.wait_for(self.machine.next_compute)

    def _compute(self, order: Compute) -> None:
        self.box.computing(order.pack)
        pack = to_tensors(self.store[order.pack], self.device)
        slot = self.ring.slot(order.slot)
        here = slot.device == self.device
        features = self.target.features(pack.tokens_BS, pack.position_BS, pack.document_BS, out=slot if here else None)
        if not here:
            slot.copy_(features)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.box.computing(None)
        self.control.tally.packs += 1
        self.control.report(self.machine.computed)


def main() -> int:
    end_process_on_thread_error()
    try:
        TargetRole(begin(sys.argv)).run()
    except ConfigError as error:
        return exit_code_of(error)
    return 0


if __name__ == "__main__":
    leave(main())
