"""Proof that attention runs as the compiled block-sparse kernel: flex_attention falls back without an error.

Uncompiled it is right and materializes every score, at a third of the rate; so one step is looked at with the
profiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

KERNELS = {"flex": ("flex_attention", "flex_attention_backward"), "flash": ("flash_fwd", "flash_bwd_sm")}
"""In the names of kernels, forward and backward: those that Inductor makes of flex_attention, FlashAttention-4's."""


class FellBack(RuntimeError):
    """Attention does not run as the compiled kernel; the message says what was seen."""


@dataclass(frozen=True)
class Evidence:
    """What one forward and backward showed."""

    graphs: int
    """Compiled in this process."""
    kernels: int
    """Launches that the profiler listed; 0 where it may not look."""
    forward: int
    """Those of them that are the attention wanted, in the forward,"""
    backward: int
    """and in the backward."""
    peak_bytes: int
    """By which memory grew at most."""
    dense_bytes: int
    """Of one layer's float32 scores, which the fallback materializes."""

    def __str__(self) -> str:
        memory = f"{self.peak_bytes / 1e9:.2f} GB, all scores of a layer take {self.dense_bytes / 1e9:.2f} GB"
        if not self.kernels:
            return f"not proved, the profiler lists no kernel; memory grew by {memory}"
        return (
            f"{self.forward} + {self.backward} of {self.kernels} kernels are block-sparse attention, forward and "
            f"backward; memory grew by {memory}"
        )


def fallback_reason(seen: Evidence, num_layers: int) -> str | None:
    """Why attention is not the compiled kernel; None when nothing speaks against it.

    >>> fallback_reason(Evidence(3, 500, 5, 5, 10**9, 10**10), 5) is None
    True
    """
    if seen.graphs == 0:
        return "nothing was compiled; TORCHDYNAMO_DISABLE or TORCH_COMPILE_DISABLE may be set"
    if seen.kernels and min(seen.forward, seen.backward) < num_layers:
        return f"{num_layers} layers should each have run a block-sparse attention kernel in either pass: {seen}"
    return None


def dense_bytes(rows: int, heads: int, queries: int, keys: int) -> int:
    """Of float32 scores [rows, heads, queries, keys]."""
    return 4 * rows * heads * queries * keys


def look(step: Callable[[], None], attention: str, graphs: int, dense: int) -> Evidence:
    """Run the step on the current CUDA device under the profiler, a second or so more than it takes.

    `attention` is "flex" or "flash".
    """
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    kernels = [event for event in profile.key_averages() if event.self_device_time_total > 0]
    in_forward, in_backward = KERNELS[attention]
    backward = sum(e.count for e in kernels if in_backward in e.key)
    forward = sum(e.count for e in kernels if in_forward in e.key and in_backward not in e.key)
    grown = torch.cuda.max_memory_allocated() - before
    return Evidence(graphs, sum(event.count for event in kernels), forward, backward, grown, dense)
