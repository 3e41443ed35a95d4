"""All trained parameters as one vector, and all that a step sums over workers as another.

One all-reduce of `vector` carries gradients, denominator, statistics and the counts of packs, so they cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dfl_mp.model.linear import Linear

DENOMINATOR, LOSS, ANCHORS, ACCEPTED, LABELS, TOKENS, DATA_WAIT_S = range(7)
STATISTICS = 7
"""Length of the tail before the counters of packs."""


class FlatParameters:
    """Lays a drafter's parameters and gradients out as views of a few vectors, matrices first, then norms.

    `master` [P] holds the weights in full precision, `working` [matrices] what the products read: a copy in the compute
    dtype, or `master` itself. `vector` is [P gradients | 7 statistics | G pack counters]. Pack i of a step adds 1 to
    counter i: after the all-reduce every counter of a whole step is 1. The module's parameters must have one dtype
    and device already; its matrices must be `Linear`s, which add their gradients to `vector` themselves.
    """

    def __init__(self, module: nn.Module, packs_per_step: int, compute: torch.dtype) -> None:
        named = sorted(module.named_parameters(), key=lambda item: item[1].ndim == 1)
        self.layout = [(name, tuple(p.shape)) for name, p in named]
        self.num_parameters = sum(p.numel() for _, p in named)
        self.num_matrix = sum(p.numel() for _, p in named if p.ndim > 1)
        like = named[0][1].detach()
        self.master = like.new_empty(self.num_parameters)
        self.working = self.master[: self.num_matrix]
        self.has_copy = compute != like.dtype
        if self.has_copy:
            self.working = self.working.new_empty(self.num_matrix, dtype=compute)
        self.vector = like.new_zeros(self.num_parameters + STATISTICS + packs_per_step)
        self.gradient = self.vector[: self.num_parameters]
        self.tail = self.vector[self.num_parameters :]
        self.pack_counts = self.tail[STATISTICS:]
        owners = {f"{name}.weight": m for name, m in module.named_modules() if isinstance(m, Linear)}
        offset = 0
        for name, p in named:
            part = slice(offset, offset := offset + p.numel())
            self.master[part].view_as(p).copy_(p.detach())
            sums = self.gradient[part].view_as(p)
            if name in owners:
                p.data = self.working[part].view_as(p)
                owners[name].gradient_sum = sums
            else:
                p.data = self.master[part].view_as(p)
                p.grad = sums
        self.refresh()

    def named_masters(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter's name and its view of `master`."""
        offset = 0
        for name, shape in self.layout:
            end = offset + math.prod(shape)
            yield name, self.master[offset:end].view(shape)
            offset = end

    def refresh(self) -> None:
        """To be called when `master` has changed: the products read a copy of it."""
        if self.has_copy:
            self.working.copy_(self.master[: self.num_matrix])

    def parts(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Matrices and norms of a [P] vector, as views."""
        return vector[: self.num_matrix], vector[self.num_matrix : self.num_parameters]


@dataclass(frozen=True)
class StepResult:
    step: int
    skipped: bool
    """Denominator 0 or a non-finite sum: weights and moments stayed as they were."""
    loss: float
    """Σ w·CE / denominator; NaN when the denominator is 0."""
    lr: float
    grad_norm: float
    """Of the divided gradient, before clipping."""
    accept_len_est: float
    """Teacher-forced acceptance length at the anchors, bonus included; an estimate, never τ. NaN without anchors."""
    denominator: float
    anchors: int
    labels: int
    """Labels trained; a token may be the label of several blocks."""
    tokens: int
    """Tokens of data, padding not counted."""
    data_wait_s: float
    """Summed over the drafters."""
    pack_counts: tuple[int, ...]
    """How often pack i of the step is in the sum: all 1 in a whole step."""


def step_result(step: int, skipped: bool, lr: float, grad_norm: float, tail: list[float]) -> StepResult:
    """From the summed tail of `FlatParameters.vector`, on the host."""
    denominator, anchors = tail[DENOMINATOR], tail[ANCHORS]
    return StepResult(
        step=step,
        skipped=skipped,
        loss=tail[LOSS] / denominator if denominator else math.nan,
        lr=lr,
        grad_norm=grad_norm,
        accept_len_est=tail[ACCEPTED] / anchors if anchors else math.nan,
        denominator=denominator,
        anchors=round(anchors),
        labels=round(tail[LABELS]),
        tokens=round(tail[TOKENS]),
        data_wait_s=tail[DATA_WAIT_S],
        pack_counts=tuple(round(x) for x in tail[STATISTICS:]),
    )
