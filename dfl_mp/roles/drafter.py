"""A drafter worker: trains on packs, reduces with its peers, applies what the coordinator commits.

    python -m dfl_mp.roles.drafter RUN_DIR drafter-0.1

consumes: packs copied by its intake, and the orders Form, Reduce, Commit, Save
waits for: the next of these
unblocked by: a full buffer, or the coordinator
produces: gradients, reduced buffers, applied steps, checkpoints; each said to the coordinator once it is so
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from dfl_mp import checkpoint, needs
from dfl_mp.blackbox import BlackBox
from dfl_mp.data.packs import PackStore
from dfl_mp.errors import ConfigError
from dfl_mp.gate import GATE
from dfl_mp.log import say
from dfl_mp.messages import Recompiled, Statistics
from dfl_mp.model.drafter import new_drafter
from dfl_mp.model.flash import flash_reason
from dfl_mp.model.flash_ahead import FlashAhead
from dfl_mp.model.frozen_ends import frozen_ends
from dfl_mp.protocol.drafter import AllReduce, Apply, Compute, Drafter, Join, Work, WriteCheckpoint
from dfl_mp.roles.common import Job, begin, device, exit_code_of, leave, load_libraries
from dfl_mp.roles.flights import Flights, OneByOne, cuda_mark
from dfl_mp.roles.intake import Intake
from dfl_mp.roles.tensors import to_tensors
from dfl_mp.roles.warmup import WarmUp
from dfl_mp.roles.worker import Control, Tally, end_process_on_thread_error
from dfl_mp.startup import Startup
from dfl_mp.train.clock import cuda_clock, host_clock
from dfl_mp.train.compiled import CompileLog, forbid_recompiles
from dfl_mp.train.group import GradientGroup, Superseded
from dfl_mp.train.step import StepResult, StepSettings, TrainStep

STATE_OF = {Compute: "working", Apply: "working", AllReduce: "reducing", Join: "joining", WriteCheckpoint: "saving"}


class DrafterRole:
    """See the module."""

    def __init__(self, job: Job, startup: Startup, ahead: FlashAhead | None = None) -> None:
        self.job, self.device, self.startup, self.ahead = job, device(), startup, ahead
        self.box = BlackBox(job.run_dir, job.worker)
        self.store = PackStore.open(Path(job.prepared.data_dir))
        self.per_step = job.config.train.packs_per_step
        self.machine = Drafter(self.per_step)
        self.group = GradientGroup(job.run_dir, job.worker, self.device)
        tally = Tally(counts=False)
        self.control = Control(job.run_dir, job.worker, self.machine, self._abort_if_superseded, tally)
        self.intake = Intake(self.control, self.machine, self.device)
        one_by_one = OneByOne(job.run_dir, job.worker, self.per_step)
        self.flights = Flights(self.box, cuda_mark if self.device.type == "cuda" else None, one_by_one)
        self.clock = cuda_clock() if self.device.type == "cuda" else host_clock()
        self.waited_s = 0.0
        """Of the step before: what the device has done is read late, so that nothing waits for it."""

    def _abort_if_superseded(self) -> None:
        if self.machine.must_abort:
            assert self.machine.form is not None
            self.group.supersede(self.machine.form.generation)

    def run(self) -> None:
        self.control.start()
        self.train = self._build()
        self.startup.mark("load")
        self._warm_up()
        self.intake.start()
        self.control.report(self.machine.warmed)
        while (work := self._next()) is not None:
            with self.control.tally.doing(STATE_OF[type(work)]):
                self._do(work)
        self.control.close()

    # ---- start ----------------------------------------------------------------------------------------------------

    def _build(self) -> TrainStep:
        c, p = self.job.config, self.job.prepared
        ends = frozen_ends(p.target, c.target, self.device)
        model = new_drafter(p.drafter, self.device)
        settings = StepSettings(
            optim=c.optim,
            loss=c.train.loss,
            dtype=c.drafter.dtype,
            attention=c.drafter.attention,
            packs_per_step=self.per_step,
            num_steps=p.num_steps,
            float8=c.drafter.float8,
            activation_memory_budget=c.drafter.activation_memory_budget,
        )
        train = TrainStep(model, ends, settings)
        train.reset(c.train.seed)
        return train

    def _warm_up(self) -> None:
        """Compile and prove the step, so that nothing is compiled later."""
        self.warm_up = WarmUp(self.job, self.train, self.control.tally, self.startup, self.ahead)
        self.warm_up.run(self.store[0])
        self.unproved = False
        self.compiled = CompileLog()
        if self.job.config.cluster.on_recompile == "error":
            forbid_recompiles()
        stages = self.compiled.stages() if self.device.type == "cuda" else {}
        self.box.ready({"seconds": self.startup.seconds, "compiled": stages})
        parts = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in self.startup.seconds.items())
        say(f"ready on {self.device}: {parts}")

    # ---- work -----------------------------------------------------------------------------------------------------

    def _next(self) -> Work | None:
        with self.control.tally.doing("idle"):
            return self.control.wait_for(self.machine.next_work)

    def _do(self, work: Work) -> None:
        match work:
            case Compute():
                self._compute(work.pack)
            case AllReduce():
                self._reduce(work)
            case Apply():
                self._apply(work.step)
            case Join():
                self._join(work)
            case WriteCheckpoint():
                self._save(work.steps)

    def _compute(self, pack: int) -> None:
        with self.flights.giving(pack):
            features = self.intake.take(pack)
            self.train.waited(self.waited_s)
            self.waited_s = 0.0
            self._accumulate(pack, features)
            self.intake.give_back(features)
        self.control.tally.packs += 1
        self.control.report(lambda: self.machine.computed(pack))

    def _accumulate(self, pack: int, features: Tensor) -> None:
        with self.clock.working(waited=True):
            tensors = to_tensors(self.store[pack], self.device)
            step = partial(self.train.accumulate, features, tensors, pack % self.per_step)
            if self.unproved:
                say(f"attention: {self.warm_up.prove(step, tensors)}")
                self.unproved = False
            else:
                step()

    def _reduce(self, work: AllReduce) -> None:
        if len(self.group.members) > 1:
            self.flights.wait()  # a fault of a pack that shows in the collective would pass for a peer's death
        try:
            self.reduced = self.group.all_reduce(self.train.vector)
        except Superseded as error:
            say(f"reduce of step {work.step} given up: {error}")
            self.control.report(self.machine.aborted)
            return
        self.control.report(lambda: self.machine.all_reduced(work))

    def _apply(self, step: int) -> None:
        assert self.machine.commit is not None
        self.flights.wait()
        with self.clock.working(waited=False):
            result = self.train.apply(self.reduced, step)
        spent = self.clock.read()
        self.control.tally.spent(*spent)
        self.waited_s = spent.wait_s
        counted = tuple(step * self.per_step + i for i, times in enumerate(result.pack_counts) if times)
        assert counted == self.machine.commit.packs and max(result.pack_counts) <= 1, "the sum holds other packs"
        self.control.tally.step = step + 1
        statistics = _statistics(result)
        self.control.report(lambda: self.machine.has_applied(statistics))
        self._look_for_recompiles()

    def _look_for_recompiles(self) -> None:
        new = self.compiled.new()
        if new is not None:
            say(f"{new.graphs} graphs were compiled after the warm-up: {new.reason}")
            self.unproved = self.warm_up.provable
            message = Recompiled(graphs=new.graphs, reason=new.reason[:4096], seconds=new.seconds)
            self.control.report(lambda: self.machine.outbox.append(message))

    def _save(self, steps: int) -> None:
        folder = self.job.run_dir / "checkpoints" / f".private-{self.job.worker}-{steps}"
        state, meta = self.train.state_dict()
        checkpoint.write(folder, steps, self.train.drafter.state_dict(), state, meta)
        self.clock.forget()
        self.control.report(lambda: self.machine.saved(steps, folder.name))

    # ---- generations ------------------------------------------------------------------------------------------------

    def _join(self, work: Join) -> None:
        order, within = work.order, self.job.config.deadline.form
        receives = self.job.worker in order.receivers or order.load is not None
        self.clock.forget()
        self.flights.wait()
        try:
            self.group.form(order.generation, order.members, within)
            if receives:
                self.control.report(self.machine.void)
            applied = self._load(order.load) if order.load is not None else self._share(work)
        except Superseded as error:
            say(f"generation {order.generation} given up: {error}")
            self.control.report(self.machine.aborted)
            return
        self.control.tally.step = applied
        say(f"in generation {order.generation} with {', '.join(order.members)} at step {applied}")
        self.control.report(lambda: self.machine.joined(order, applied, receives))

    def _load(self, steps: int) -> int:
        if steps == 0:
            self.train.reset(self.job.config.train.seed)
            return 0
        folder = self.job.run_dir / "checkpoints" / f"step_{steps:08d}"
        found, state, meta = checkpoint.read(folder)
        assert found == steps
        self.train.load_state_dict(state, meta)
        return steps

    def _share(self, work: Join) -> int:
        """Receivers get the source's state; the others' own gradient is not touched."""
        order = work.order
        if not order.receivers:
            assert self.machine.applied is not None
            return self.machine.applied
        assert order.source is not None
        applied = torch.tensor([self.machine.applied or 0], device=self.device)
        self.group.broadcast([applied, *self.train.state_vectors()], order.source)
        if self.job.worker in order.receivers:
            self.train.state_changed()
        return int(applied.item())


def _statistics(result: StepResult) -> Statistics:
    return Statistics(
        loss=result.loss,
        lr=result.lr,
        grad_norm=result.grad_norm,
        tokens=float(result.tokens),
        trained_tokens=float(result.labels),
        accept_len_est=result.accept_len_est,
        data_wait_s=result.data_wait_s,
        skipped=result.skipped,
    )


def _flash_ahead(place: torch.device) -> FlashAhead | None:
    """At a run's first start, which has a gate, there may be nothing in the cache of compiled code."""
    usable = needs.flash_reason(needs.describe(place), "bfloat16", None) is None
    return FlashAhead() if usable and GATE in os.environ else None


def main() -> int:
    startup = Startup()
    startup.mark("python")
    end_process_on_thread_error()
    try:
        place = device()
        load_libraries(place)
        ahead = _flash_ahead(place)
        flash_reason(place, torch.bfloat16, head_dim=128)  # loads the library, if it can be used
        startup.mark("libraries")
        job = begin(sys.argv)
        startup.mark("prepared")
        DrafterRole(job, startup, ahead).run()
    except ConfigError as error:
        return exit_code_of(error)
    return 0


if __name__ == "__main__":
    leave(main())
