"""One optimizer step: packs in, gradients summed, weights moved. State in, state out; no socket, no clock.

Legend of shape suffixes: `dfl_mp/model/shapes.py`.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dfl_mp import needs
from dfl_mp.config import LossConfig, OptimConfig
from dfl_mp.errors import CheckpointError
from dfl_mp.model.blocks import default_gamma
from dfl_mp.model.drafter import Drafter, initial_weights_
from dfl_mp.model.flash import flash_reason
from dfl_mp.model.float8 import require
from dfl_mp.model.linear import use_float8
from dfl_mp.model.loss import weighted_cross_entropy
from dfl_mp.model.shapes import FrozenEnds, LossSums, PackTensors
from dfl_mp.train import parameters as flat
from dfl_mp.train.adamw import adamw_, step_scalars
from dfl_mp.train.inputs import Captured, input_maker
from dfl_mp.train.parameters import FlatParameters, StepResult, step_result
from dfl_mp.train.schedule import learning_rate


@dataclass(frozen=True)
class StepSettings:
    """What the mathematics of a step depends on besides weights and data."""

    optim: OptimConfig
    loss: LossConfig
    dtype: str
    """Compute dtype: "bfloat16" (float32 masters, moments and gradients), "float32" or "float64"."""
    attention: str
    """"auto", "dense", "flex" or "flash"."""
    packs_per_step: int
    num_steps: int
    float8: bool = False
    """Products of the layers in float8; weight gradients, fc and head stay in `dtype`."""
    activation_memory_budget: float = 1.0
    """Share of the forward's results kept for the backward where the step is compiled; the rest is computed again."""


def choose_attention(attention: str, dtype: str, device: torch.device, head_dim: int) -> str:
    """For "auto" flash or flex on CUDA (not in float64), else dense. Raises ConfigError for what cannot run here."""
    without = {
        "flash": flash_reason(device, getattr(torch, dtype), head_dim),
        "flex": needs.flex_reason(needs.describe(device), dtype),
        "dense": None,
    }
    if attention != "auto":
        needs.require_attention(attention, without[attention])
        return attention
    return next(way for way, reason in without.items() if reason is None)


def compiled_graphs() -> int:
    """How many graphs Dynamo has compiled in this process; a CPU's step never loads it."""
    if "torch._dynamo" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


class TrainStep:
    """Owns a drafter's master weights, moments and gradient vector on the drafter's device.

    A step is: `accumulate` for each of its packs, an all-reduce of `vector` into another tensor by the caller,
    `apply` of that tensor. `discard` forgets what was accumulated.
    """

    def __init__(self, drafter: Drafter, ends: FrozenEnds, settings: StepSettings) -> None:
        self.spec, self.settings = drafter.spec, settings
        self.device = drafter.fc.weight.device
        self.compute = getattr(torch, settings.dtype)
        self.attention = choose_attention(settings.attention, settings.dtype, self.device, drafter.spec.head_dim)
        if settings.float8:
            require("drafter.float8", self.device, self.compute)
            use_float8(drafter.layers)
        self.drafter = drafter.to(torch.float64 if settings.dtype == "float64" else torch.float32)
        self.ends = ends.to(self.compute, self.device)
        self.flat = FlatParameters(self.drafter, settings.packs_per_step, self.compute)
        master = self.flat.master
        self.exp_avg, self.exp_avg_sq = torch.zeros_like(master), torch.zeros_like(master)
        # [updates of the matrices, of the norms, steps passed]: float32 counts exactly up to 16.7 million.
        self.counters = torch.zeros(3, dtype=torch.float32, device=self.device)
        self.gamma = settings.loss.gamma or default_gamma(self.spec.block_size)
        self._inputs = input_maker(self.spec, self.ends, self.gamma, self.attention)
        self._forward = drafter.forward
        if self.device.type == "cuda":
            from torch._functorch import config

            config.activation_memory_budget = settings.activation_memory_budget
            self._inputs = Captured(self._inputs)
            self._forward = torch.compile(drafter.forward, dynamic=False, fullgraph=True)

    @property
    def vector(self) -> Tensor:
        """What the drafters sum: gradients, denominator, statistics, pack counters."""
        return self.flat.vector

    @property
    def steps_passed(self) -> int:
        """Steps applied or skipped. Waits for the device."""
        return int(self.counters[2])

    def accumulate(self, features_BSF: Tensor, pack: PackTensors, pack_index: int) -> None:
        """Forward and backward of Σ w·CE of one pack, added to `vector`; only enqueued, no host wait.

        `pack_index` is the pack's place in its step, 0 … G − 1. All tensors lie on this device.
        """
        made = self._inputs(pack)
        hidden_BNJH = self._forward(
            features_BSF.to(self.compute), made.embeds_BMH, pack.position_BS, made.positions_BM, made.masks
        )
        sums = weighted_cross_entropy(hidden_BNJH, made.blocks, self.ends, self.settings.loss)
        sums.loss.backward()
        self._count(sums, pack, pack_index)

    def _count(self, sums: LossSums, pack: PackTensors, pack_index: int) -> None:
        tail = self.flat.tail
        tokens = (pack.document_BS >= 0).sum()
        values = (sums.denominator, sums.loss.detach(), sums.anchors, sums.accepted, sums.labels, tokens)
        tail[: len(values)] += torch.stack([x.to(tail.dtype) for x in values])
        self.flat.pack_counts[pack_index] += 1

    def waited(self, seconds: float) -> None:
        """Add time that this drafter waited for data."""
        self.flat.tail[flat.DATA_WAIT_S] += seconds

    def discard(self) -> None:
        """Forget all that was accumulated."""
        self.flat.vector.zero_()

    def warm_up(self, features_BSF: Tensor, pack: PackTensors) -> None:
        """Compile all that a step needs, and wait for it. Of a step that has just been reset nothing changes."""
        self.accumulate(features_BSF, pack, 0)
        self.discard()
        self._update(self.flat.vector, step_scalars(self.settings.optim, 0.0, 0.0, 0.0, 1))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @torch.no_grad()
    def apply(self, reduced_vector: Tensor, step: int) -> StepResult:
        """Divide, clip, move the weights, zero `vector`; `reduced_vector` may be `vector` itself. One host wait.

        A step whose denominator is 0 or whose loss or gradient is not finite is skipped: weights and moments stay.
        """
        optim, num = self.settings.optim, self.flat.num_parameters
        norm = torch.linalg.vector_norm(reduced_vector[:num])
        *tail, norm_sum, updates = torch.cat((reduced_vector[num:], norm[None], self.counters[:1])).tolist()
        lr = learning_rate(optim, step, self.settings.num_steps)
        denominator = tail[flat.DENOMINATOR]
        grad_norm = norm_sum / denominator if denominator else math.nan
        skipped = not (math.isfinite(grad_norm) and math.isfinite(tail[flat.LOSS]) and denominator > 0)
        if not skipped:
            scale = min(1.0, optim.clip_norm / (grad_norm + 1e-6)) / denominator
            self._update(reduced_vector, step_scalars(optim, lr, optim.weight_decay, scale, round(updates) + 1))
            self.counters[:2] += 1
        self.counters[2].fill_(step + 1)
        self.discard()
        return step_result(step, skipped, lr, grad_norm, tail)

    @torch.no_grad()
    def _update(self, reduced_vector: Tensor, scalars: list[float]) -> None:
        """AdamW with weight decay for the matrices, without it for the norms."""
        f = self.flat
        now = torch.tensor((scalars, [*scalars[:2], 1.0, scalars[3]]), dtype=f.master.dtype)
        if self.device.type == "cuda":
            now = now.pin_memory().to(self.device, non_blocking=True)  # the host does not wait for it
        matrices, norms = zip(*(f.parts(x) for x in (f.master, self.exp_avg, self.exp_avg_sq)), strict=True)
        if f.has_copy:
            matrices = (*matrices, f.working)
        for tensors, gradient, row in zip((matrices, norms), f.parts(reduced_vector), now, strict=True):
            adamw_(tensors, gradient, self.settings.optim, row)

    @torch.no_grad()
    def reset(self, seed: int) -> None:
        """The state before the first step: initial weights of the seed, no moments, nothing accumulated."""
        masters = dict(self.flat.named_masters())
        initial_weights_({name: masters[name] for name, _ in self.drafter.named_parameters()}, seed)
        for tensor in self.state_vectors()[1:]:
            tensor.zero_()
        self.state_changed()

    def state_changed(self) -> None:
        """To be called when `state_vectors` were overwritten: what was accumulated belongs to other weights."""
        self.flat.refresh()
        self.discard()

    def state_vectors(self) -> list[Tensor]:
        """What a joiner receives by broadcast, in place: master weights, both moments, counters."""
        return [self.flat.master, self.exp_avg, self.exp_avg_sq, self.counters]

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Flat tensors (not copied) for safetensors, and what JSON keeps beside them: names and shapes in order."""
        tensors = dict(zip(("master", "exp_avg", "exp_avg_sq", "counters"), self.state_vectors(), strict=True))
        return tensors, {"layout": [[name, list(shape)] for name, shape in self.flat.layout]}

    @torch.no_grad()
    def load_state_dict(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Raises CheckpointError when names, shapes or dtypes differ from this drafter's."""
        own, own_meta = self.state_dict()
        if meta.get("layout") != own_meta["layout"]:
            raise CheckpointError("optimizer state: layout is of another drafter")
        for name, tensor in own.items():
            new = tensors.get(name)
            if new is None or new.shape != tensor.shape or new.dtype != tensor.dtype:
                raise CheckpointError(f"optimizer state: {name} is missing, or its shape or dtype differs")
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        self.state_changed()
