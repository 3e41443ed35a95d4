"""AdamW over flat vectors in one pass over memory, compiled on CUDA. Source: arXiv 1711.05101, as torch.optim.AdamW."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from dfl_mp.config import OptimConfig

IN_CACHE = 1 << 16
"""Elements that a CPU updates at once: what several passes over them find in its cache."""


def adamw_(state: tuple[Tensor, ...], gradient: Tensor, optim: OptimConfig, now: Tensor) -> None:
    """Move weights and moments [P] in place; `gradient` is only read.

    `state` is (weights, first moment, second moment), and a copy of the weights in another dtype if there is one;
    `now` [4] is `step_scalars`, so that no number of the step is compiled in.
    """
    constants = (optim.beta1, optim.beta2, optim.eps)
    if gradient.is_cuda:
        _compiled()(state, gradient, now, constants)
        return
    pieces = (x.split(IN_CACHE) for x in (gradient, *state))
    for part, *of_state in zip(*pieces, strict=True):
        _update_(tuple(of_state), part, now, constants)


def step_scalars(optim: OptimConfig, lr: float, weight_decay: float, scale: float, updates: int) -> list[float]:
    """[factor on the gradient, step size, factor on the weights, root of the second moment's bias correction].

    `updates` counts this one: 1 at the first.
    """
    first, second = 1.0 - optim.beta1**updates, 1.0 - optim.beta2**updates
    return [scale, lr / first, 1.0 - lr * weight_decay, second**0.5]


def _update_(state: tuple[Tensor, ...], gradient_P: Tensor, now_4: Tensor, constants: tuple[float, ...]) -> None:
    weight_P, first_P, second_P, *copies = state
    beta1, beta2, eps = constants
    scale, size, keep, root = now_4.unbind()
    g_P = gradient_P * scale
    first_P.lerp_(g_P, 1.0 - beta1)
    second_P.mul_(beta2).addcmul_(g_P, g_P, value=1.0 - beta2)
    weight_P.mul_(keep).sub_(first_P / (second_P.sqrt() / root + eps) * size)
    for copy_P in copies:
        copy_P.copy_(weight_P)


@cache
def _compiled() -> Callable[..., None]:
    return torch.compile(_update_, dynamic=False)
