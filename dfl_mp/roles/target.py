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

from dfl_mp import names
from dfl_mp.blackbox import BlackBox
from dfl_mp.errors import ConfigError
from dfl_mp.log import say
from dfl_mp.messages import Compute
from dfl_mp.protocol.target import Target
from dfl_mp.roles.common import Job, begin, device, exit_code_of
from dfl_mp.roles.worker import Control, end_process_on_thread_error


class TargetRole:
    """See the module."""

    def __init__(self, job: Job) -> None:
        import torch

        from dfl_mp.data.packs import PackStore

        self.torch, self.job, self.device = torch, job, device()
        self.box = BlackBox(job.run_dir, job.worker)
        self.store = PackStore.open(Path(job.prepared.data_dir))
        self.ring = self._make_ring()
        self.machine = Target(self.ring.handle)
        self.control = Control(job.run_dir, job.worker, self.machine)

    def _make_ring(self):  # type: ignore[no-untyped-def]
        from dfl_mp.transport.ring import RingOwner

        p, spec = self.job.prepared, self.job.prepared.target
        shape = (p.rows_per_pack, p.row_tokens, spec.hidden_size * len(spec.layer_ids))
        name = names.shm_prefix(self.job.run_dir) + self.job.worker
        return RingOwner.on_shm(name, self.job.config.cluster.slots_per_target, shape, self.job.config.target.dtype)

    def run(self) -> None:
        from dfl_mp.model.target import load_feature_target

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
        from dfl_mp.roles.tensors import to_tensors

        self.box.computing(order.pack)
        pack = to_tensors(self.store[order.pack], self.device)
        slot = self.ring.slot(order.slot)
        self.target.features(pack.tokens_BS, pack.position_BS, pack.document_BS, out=slot)
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)
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
    sys.exit(main())
