"""All trained parameters as one vector, and all that a step sums over workers as another.

One all-reduce of `vector` carries gradients, denominator, statistics and the counts of packs, so they cannot disagree.
"""

from __future__ import annotations

from torch import Tensor, nn

DENOMINATOR, LOSS, ANCHORS, ACCEPTED, LABELS, TOKENS, DATA_WAIT_S = range(7)
STATISTICS = 7
"""Length of the tail before the counters of packs."""


class FlatParameters:
    """Lays a module's parameters and gradients out as views of two vectors, matrices first, then norms.

    `vector` is [P gradients | 7 statistics | G pack counters]. Pack i of a step adds 1 to counter i: after the
    all-reduce every counter of a whole step is 1. The module's parameters must have one dtype and device already.
    """

    def __init__(self, module: nn.Module, packs_per_step: int) -> None:
        named = sorted(module.named_parameters(), key=lambda item: item[1].ndim == 1)
        self.layout = [(name, tuple(p.shape)) for name, p in named]
        self.num_parameters = sum(p.numel() for _, p in named)
        self.num_matrix = sum(p.numel() for _, p in named if p.ndim > 1)
        like = named[0][1].detach()
        self.master = like.new_empty(self.num_parameters)
        self.vector = like.new_zeros(self.num_parameters + STATISTICS + packs_per_step)
        self.gradient = self.vector[: self.num_parameters]
        self.tail = self.vector[self.num_parameters :]
        self.pack_counts = self.tail[STATISTICS:]
        offset = 0
        for _, p in named:
            end = offset + p.numel()
            view = self.master[offset:end].view_as(p)
            view.copy_(p.detach())
            p.data = view
            p.grad = self.gradient[offset:end].view_as(p)
            offset = end

    def parts(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Matrices and norms of a [P] vector, as views."""
        return vector[: self.num_matrix], vector[self.num_matrix : self.num_parameters]
