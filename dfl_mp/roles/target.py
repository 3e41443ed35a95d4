"""A target worker: runs the frozen target on leased packs and fills slots of its ring.

    python -m dfl_mp.roles.target RUN_DIR target-0.1

consumes: Compute(pack, slot)
waits for: an order of the coordinator; with one on the GPU, for that
unblocked by: a free slot, which is the only permission to compute
produces: features in the slot, then FeaturesReady
"""

from __future__ import annotations

import sys
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch

from dfl_mp.blackbox import BlackBox
from dfl_mp.data.packs import PackStore
from dfl_mp.errors import ConfigError, TransportError
from dfl_mp.log import say
from dfl_mp.messages import TRANSPORT, Compute
from dfl_mp.model.target import FeatureTarget, load_feature_target
from dfl_mp.model.target_compile import compile_target
from dfl_mp.protocol.target import Target
from dfl_mp.roles.common import Job, begin, device, exit_code_of, leave, load_libraries
from dfl_mp.roles.tensors import to_tensors
from dfl_mp.roles.turns import code_key, take_turn
from dfl_mp.roles.worker import Control, end_process_on_thread_error
from dfl_mp.startup import Startup
from dfl_mp.transport.ring import RingOwner

PACKS_IN_FLIGHT = 2


class Flight(NamedTuple):
    """A pack given to the device; `ready` is None where the call itself has done the work."""

    pack: int
    ready: torch.cuda.Event | None


class TargetRole:
    """See the module."""

    def __init__(self, job: Job, startup: Startup) -> None:
        self.job, self.device, self.startup = job, device(), startup
        self.box = BlackBox(job.run_dir, job.worker)
        self.store = PackStore.open(Path(job.prepared.data_dir))
        self.ring = self._make_ring()
        self.machine = Target(self.ring.handle)
        self.control = Control(job.run_dir, job.worker, self.machine)
        self.flying: deque[Flight] = deque()

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
        with self.control.tally.doing("compiling"):
            self.target = self._load()
        self.box.ready({"seconds": self.startup.seconds})
        try:
            self._serve()
        finally:
            self.control.close()
            self.ring.close()

    def _load(self) -> FeatureTarget:
        c, p = self.job.config.target, self.job.prepared
        target = load_feature_target(p.target, c, self.device)
        self.startup.mark("load")
        compiled = c.compile is True or (c.compile == "auto" and self.device.type == "cuda")
        if compiled and (why := self._compile(target)):
            if c.compile is True:
                raise ConfigError(f"target.compile: {why}")
            target.notes.append(f"not compiled: {why}")
            compiled = False
        for note in target.notes:
            say(f"features: {note}")
        how = f"{target.way}{', compiled' if compiled else ''}{', float8' if c.float8 else ''}"
        parts = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in self.startup.seconds.items())
        say(f"ready on {self.device} ({how}): {parts}")
        return target

    def _compile(self, target: FeatureTarget) -> str | None:
        """In turn with other targets. Why not, when it cannot be done."""
        p = self.job.prepared
        shape = (p.rows_per_pack, p.row_tokens)
        with ExitStack() as stack:
            if self.device.type == "cuda":
                key = code_key("target", shape, p.target, self.job.config.target)
                take_turn(stack, key, self.job, self.control.tally)
                self.startup.mark("wait")
            why = compile_target(target, *shape)
            self.startup.mark("compile")
        return why

    # ---- packs ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """The next pack is given to the GPU before the one on it is waited for, so that it never idles between them."""
        while (order := self._next()) is not None or self.flying:
            with self.control.tally.doing("working"):
                if order is not None:
                    self._begin(order)
                if order is None or len(self.flying) >= self._depth():
                    self._finish()

    def _next(self) -> Compute | None:
        """Waits for an order only when nothing is on the GPU; None: none is there, or the run is over."""
        if self.flying:
            with self.control.changed:
                return None if self.machine.stopped else self.machine.next_compute()
        with self.control.tally.doing("idle"):
            return self.control.wait_for(self.machine.next_compute)

    def _depth(self) -> int:
        """One at a time on a CPU, and at first after a restart: a pack that crashes targets is then named alone."""
        again = not self.job.worker.endswith(".1") and self.control.tally.packs < 2 * self.ring.handle.num_slots
        return 1 if self.device.type != "cuda" or again else PACKS_IN_FLIGHT

    def _begin(self, order: Compute) -> None:
        self.box.computing(order.pack)
        pack = to_tensors(self.store[order.pack], torch.device("cpu"))
        inputs = (pack.tokens_BS, pack.position_BS, pack.document_BS)
        ready = None
        if self.device.type == "cuda":
            inputs = tuple(x.pin_memory() for x in inputs)
            ready = torch.cuda.Event(blocking=True)
        slot = self.ring.slot(order.slot)
        here = slot.device == self.device
        features = self.target.features(*inputs, out=slot if here else None)
        if not here:
            slot.copy_(features, non_blocking=True)
        if ready is not None:
            ready.record()
        self.flying.append(Flight(order.pack, ready))
        self.box.computing(self.flying[0].pack)

    def _finish(self) -> None:
        """Wait for the oldest pack on the host, then report it."""
        flight = self.flying[0]
        if flight.ready is not None:
            flight.ready.synchronize()
        self.flying.popleft()
        self.box.computing(self.flying[0].pack if self.flying else None)
        self.control.tally.packs += 1
        self.control.report(self.machine.computed)


def main() -> int:
    startup = Startup()
    startup.mark("python")
    end_process_on_thread_error()
    try:
        place = device()
        load_libraries(place)
        startup.mark("libraries")
        job = begin(sys.argv)
        startup.mark("prepared")
        TargetRole(job, startup).run()
    except ConfigError as error:
        return exit_code_of(error)
    return 0


if __name__ == "__main__":
    leave(main())
