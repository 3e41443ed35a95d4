"""What Dynamo has compiled in this process: how much, how long it took, and why it was done again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from dfl_mp.train.step import compiled_graphs

if TYPE_CHECKING:
    from torch._dynamo.utils import CompilationMetrics

STAGES = {
    "dynamo": "dynamo_cumulative_compile_time_us",
    "aot_autograd": "aot_autograd_cumulative_compile_time_us",
    "inductor": "inductor_cumulative_compile_time_us",
    "triton": "triton_compile_time_us",
    "backward": "backward_cumulative_compile_time_us",
}
"""Each of the first three contains the next."""
CACHES = {
    "aot_hits": "aotautograd_local_cache_hit_count",
    "aot_misses": "aotautograd_local_cache_miss_count",
    "inductor_hits": "inductor_fx_local_cache_hit_count",
    "inductor_misses": "inductor_fx_local_cache_miss_count",
}
"""What the first cache has is not asked of the second."""
UNKNOWN = "no guard failed: another function, or a backward"


class New(NamedTuple):
    """What was compiled since the last look."""

    graphs: int
    reason: str
    """The guards that failed, `function: guard`, as Dynamo words them."""
    seconds: float


class CompileLog:
    """Looks at what is compiled. Reads what torch keeps anyway; cheap when there is nothing new."""

    def __init__(self) -> None:
        self._graphs = compiled_graphs()
        self._known = _metrics()

    def new(self) -> New | None:
        """None when nothing was compiled since the last look."""
        graphs = compiled_graphs() - self._graphs
        if graphs == 0:
            return None
        entries = _metrics()
        fresh = [entry for entry in entries if all(entry is not known for known in self._known)]
        self._graphs, self._known = self._graphs + graphs, entries
        reasons = [f"{e.co_name}: {' '.join(e.recompile_reason.split())}" for e in fresh if e.recompile_reason]
        seconds = sum(entry.entire_frame_compile_time_s or 0.0 for entry in fresh)
        return New(graphs, "; ".join(reasons) or UNKNOWN, seconds)

    def stages(self) -> dict[str, float]:
        """Seconds of each stage, and hits and misses of the caches, of all that was compiled in this process."""
        entries = _metrics()
        found = {name: round(_sum(entries, field) / 1e6, 2) for name, field in STAGES.items()}
        return found | {name: _sum(entries, field) for name, field in CACHES.items()}


def _metrics() -> list[CompilationMetrics]:
    """What Dynamo has noted; nothing where it was never loaded, which takes two seconds."""
    if "torch._dynamo" not in sys.modules:
        return []
    from torch._dynamo.utils import get_compilation_metrics

    return get_compilation_metrics()


def _sum(entries: list[CompilationMetrics], field: str) -> float:
    return sum(getattr(entry, field) or 0 for entry in entries)


def forbid_recompiles() -> None:
    """From now on a recompile raises torch's RecompileError with its reason. For the thread that calls it."""
    from torch._dynamo import config

    config.error_on_recompile = True
