"""Learning rate of a step: a pure function of the step's number."""

from __future__ import annotations

import math

from dfl_mp.config import OptimConfig


def learning_rate(optim: OptimConfig, step: int, num_steps: int) -> float:
    """Rate of step 0 … num_steps − 1: linear warm-up, then cosine to 0, constant, or constant with a linear decay.

    Example: 100 steps, warm-up 4 %: step 0 runs at lr/4, step 3 at lr, and cosine reaches lr/2 half-way to step 100.
    """
    warmup = round(optim.warmup_ratio * num_steps)
    if step < warmup:
        return optim.lr * (step + 1) / warmup
    left = max(0, num_steps - step)
    if optim.schedule == "cosine":
        return optim.lr * 0.5 * (1 - math.cos(math.pi * left / max(1, num_steps - warmup)))
    if optim.schedule == "wsd":
        return optim.lr * min(1.0, left / max(1, round(optim.decay_ratio * num_steps)))
    return optim.lr
