"""A drafter's warm-up: its step is compiled before it joins, in turn with the others, and proved to be what it should.

consumes: one real pack with made-up features
waits for: another worker that compiles the same, if there is one
unblocked by: that worker's success or death; half of `deadline.start` at most
produces: compiled code in the process and in the shared cache; a CompileLog that knows it
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import torch

from dfl_mp.data.packs import Pack
from dfl_mp.log import say
from dfl_mp.model.flash_ahead import FlashAhead
from dfl_mp.model.shapes import PackTensors
from dfl_mp.roles.common import Job
from dfl_mp.roles.tensors import to_tensors
from dfl_mp.roles.turns import code_key, take_turn
from dfl_mp.roles.worker import Tally
from dfl_mp.startup import Startup
from dfl_mp.train import proof
from dfl_mp.train.step import TrainStep, compiled_graphs
from dfl_mp.transport.ring import DTYPES


class WarmUp:
    """See the module. `prove` looks again after a recompile."""

    def __init__(self, job: Job, train: TrainStep, tally: Tally, startup: Startup, ahead: FlashAhead | None) -> None:
        self._job, self._train, self._tally, self._startup, self._ahead = job, train, tally, startup, ahead
        self.provable = train.attention in proof.KERNELS

    def run(self, pack: Pack) -> None:
        """Raises FellBack when attention is not the compiled kernel that it should be."""
        tensors = to_tensors(pack, self._train.device)
        prepared = self._job.prepared
        width = prepared.target.hidden_size * prepared.drafter.num_features
        features = torch.randn(*tensors.tokens_BS.shape, width, device=self._train.device)
        features = features.to(DTYPES[self._job.config.target.dtype])
        with ExitStack() as stack:
            if self._train.device.type == "cuda":
                leads = take_turn(stack, self._key(tensors), self._job, self._tally)
                self._startup.mark("wait")
                self._compile_ahead(leads, len(tensors.tokens_BS))
            with self._tally.doing("compiling"):
                self._train.warm_up(features, tensors)
                self._startup.mark("compile")
        if self.provable:
            with self._tally.doing("compiling", "looks at its kernels"):
                say(f"attention: {self.prove(partial(self._step, features, tensors), tensors)}")
                self._startup.mark("proof")

    def _compile_ahead(self, leads: bool, rows: int) -> None:
        if self._ahead is None:
            return
        if leads and self._train.attention == "flash":
            self._ahead.compile(self._train.spec, rows)
        else:
            self._ahead.drop()

    def prove(self, step: partial[None], tensors: PackTensors) -> proof.Evidence:
        """Run the step and look at its kernels. Raises FellBack."""
        spec = self._train.spec
        rows, S = tensors.tokens_BS.shape
        queries = tensors.anchor_BN.shape[1] * spec.block_size
        dense = proof.dense_bytes(rows, spec.num_attention_heads, queries, S + queries)
        seen = proof.look(step, self._train.attention, compiled_graphs(), dense)
        reason = proof.fallback_reason(seen, spec.num_layers)
        if reason is not None:
            raise proof.FellBack(f"attention is not the compiled block-sparse kernel: {reason}")
        return seen

    def _step(self, features: torch.Tensor, tensors: PackTensors) -> None:
        self._train.accumulate(features, tensors, 0)
        self._train.discard()

    def _key(self, tensors: PackTensors) -> str:
        c = self._job.config
        shapes = [tuple(tensor.shape) for tensor in (tensors.tokens_BS, tensors.anchor_BN)]
        return code_key(
            "drafter",
            self._train.attention,
            shapes,
            c.drafter,
            c.train.loss,
            c.target.dtype,
            self._job.prepared.drafter,
        )
