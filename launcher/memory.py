"""Before a worker starts: does what was planned fit into the GPUs and into the machine's memory? Estimates, from
shapes alone.

Measured beside it on an H200: a Qwen3-8B drafter, 1 row of 4096 tokens with 512 anchors, peaked at 35.2 GB; this says
35.9.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from dfl_mp.config import Config
from dfl_mp.errors import ConfigError
from dfl_mp.specs import DrafterSpec, Prepared, TargetSpec
from launcher.plan import Plan

GIB = 1 << 30
BYTES = {"float32": 4, "bfloat16": 2, "float64": 8}
CONTEXT = 600 << 20
"""What CUDA and its libraries hold in a process."""
COPY_BUFFERS = 3


@dataclass(frozen=True)
class Need:
    """Bytes of one worker, by what for."""

    parts: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        return sum(size for _, size in self.parts)

    def __str__(self) -> str:
        return ", ".join(f"{name} {size / GIB:.1f}" for name, size in self.parts if size >= GIB // 20)


def layer_parameters(spec: TargetSpec | DrafterSpec) -> int:
    """Of one decoder layer with a gated MLP; mixtures of experts hold more."""
    h, q, kv = spec.hidden_size, spec.num_attention_heads, spec.num_key_value_heads
    return 2 * h * spec.head_dim * (q + kv) + 3 * h * spec.intermediate_size


def ring(config: Config, p: Prepared) -> int:
    """Bytes of one target's ring."""
    width = p.target.hidden_size * len(p.target.layer_ids)
    slot = p.rows_per_pack * p.row_tokens * width * BYTES[config.target.dtype]
    return slot * config.cluster.slots_per_target + (1 << 20)


def target_need(config: Config, p: Prepared, ring_here: bool) -> Need:
    spec, size = p.target, BYTES[config.target.dtype]
    weights = (layer_parameters(spec) * (spec.layer_ids[-1] + 1) + spec.vocab_size * spec.hidden_size) * size
    tokens = p.rows_per_pack * p.row_tokens
    work = tokens * (3 * spec.intermediate_size + 8 * spec.hidden_size) * size
    held = ring(config, p) if ring_here else 0
    return Need((("weights", weights), ("ring", held), ("activations", work), ("CUDA", CONTEXT)))


def drafter_need(config: Config, p: Prepared) -> Need:
    """Masters, gradient, reduced sum and two moments in the master type; activations as measured."""
    spec, size = p.drafter, BYTES[config.drafter.dtype]
    master = 8 if config.drafter.dtype == "float64" else 4
    count = layer_parameters(spec) * spec.num_layers + spec.num_features * spec.hidden_size**2
    slots = p.rows_per_pack * p.anchors_per_row * spec.block_size
    work = slots * spec.num_layers * (4 * spec.intermediate_size + 16 * spec.hidden_size) * size
    tokens = p.rows_per_pack * p.row_tokens
    copies = COPY_BUFFERS * tokens * spec.num_features * spec.hidden_size * BYTES[config.target.dtype]
    ends = 2 * p.target.vocab_size * spec.hidden_size * size
    state = count * (5 * master + (size if size < master else 0))
    parts = (("state", state), ("embedding and head", ends), ("activations", work), ("features", copies))
    return Need((*parts, ("CUDA", CONTEXT)))


def check(plan: Plan, config: Config, p: Prepared, memory_free: int | None = None) -> tuple[str, ...]:
    """Lines about what each GPU will hold.

    Raises ConfigError naming the GPU that is too small, or the machine's memory, and what would make it fit.
    """
    on_cuda = plan.workers[0].gpu is not None and config.cluster.transport == "auto"
    if not on_cuda:
        _check_rings(len(plan.targets) * ring(config, p), _free() if memory_free is None else memory_free)
    needs: dict[str, list[tuple[str, Need]]] = {}
    free: dict[str, int] = {}
    for place in plan.workers:
        if place.gpu is not None:
            is_target = place.name.startswith("target")
            need = target_need(config, p, on_cuda) if is_target else drafter_need(config, p)
            needs.setdefault(place.gpu.name, []).append((place.name, need))
            free[place.gpu.name] = place.gpu.free_mib << 20
    lines = []
    for gpu, here in needs.items():
        total = sum(need.total for _, need in here)
        said = "; ".join(f"{name} about {need.total / GIB:.1f} GiB ({need})" for name, need in here)
        if total > free[gpu]:
            raise ConfigError(
                f"cluster: GPU {gpu} has {free[gpu] / GIB:.1f} GiB free for {said}; fewer data.rows_per_pack, "
                "data.anchors_per_row or cluster.slots_per_target need less"
            )
        lines.append(f"GPU {gpu}: {said}; {free[gpu] / GIB:.1f} GiB free")
    return tuple(lines)


def _check_rings(wanted: int, free: int) -> None:
    if wanted > free:
        raise ConfigError(
            f"cluster.slots_per_target: the rings need {wanted / GIB:.2f} GiB of memory, of which {free / GIB:.2f} GiB "
            "are free; fewer slots, data.rows_per_pack or data.row_tokens need less"
        )


def _free() -> int:
    return int(psutil.virtual_memory().available)
