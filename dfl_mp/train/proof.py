"""Proof that attention runs as the compiled block-sparse kernel: flex_attention falls back without an error.

Uncompiled it is right and materializes every score, at a third of the rate; so one step is looked at with the
profiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

KERNELS = {"flex": "flex_attention", "flash": "flash"}
"""In the names of the kernels that Inductor makes of flex_attention, and of those of FlashAttention-4."""


class FellBack(RuntimeError):
    """Attention does not run as the compiled kernel; the message says what was seen."""


@dataclass(frozen=True)
class Evidence:
    """What one forward and backward showed."""

    graphs: int
    """Compiled in this process."""
    kernels: int
    """Launches that the profiler listed; 0 where it may not look."""
    attention_kernels: int
    """Those of them that are the attention wanted."""
    peak_bytes: int
    """By which memory grew at most."""
    dense_bytes: int
    """Of one layer's float32 scores, which the fallback materializes."""

    def __str__(self) -> str:
        return (
            f"{self.attention_kernels} of {self.kernels} kernels are block-sparse attention; memory grew by "
            f"{self.peak_bytes / 1e9:.2f} GB, all scores of a layer take {self.dense_bytes / 1e9:.2f} GB"
        )


def fallback_reason(seen: Evidence, num_layers: int) -> str | None:
    """Why attention is not the compiled kernel; None when nothing speaks against it.

    >>> fallback_reason(Evidence(3, 500, 10, 10**9, 10**10), 5) is None
    True
    """
    if seen.graphs == 0:
        return "nothing was compiled; TORCHDYNAMO_DISABLE or TORCH_COMPILE_DISABLE may be set"
    if seen.kernels and seen.attention_kernels < num_layers:
        return f"{num_layers} layers should each have run a block-sparse attention kernel: {seen}"
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
    wanted = sum(event.count for event in kernels if KERNELS[attention] in event.key)
    grown = torch.cuda.max_memory_allocated() - before
    return Evidence(graphs, sum(event.count for event in kernels), wanted, grown, dense)
