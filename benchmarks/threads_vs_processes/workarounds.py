"""What people do to keep threads alive, and variants that the product does not have; applied once per interpreter."""

from __future__ import annotations

import functools
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from types import MethodType, ModuleType
from typing import Any

import torch
import torch.fx._symbolic_trace as symbolic_trace
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, create_mask
from torch.utils.checkpoint import checkpoint

import dfl_mp.train.inputs as product
from benchmarks.threads_vs_processes.cells import FLAG_FALSE, FLAG_LOCAL, LOCK_ALL, LOCK_FIRST, LOCK_MASK, Cell
from dfl_mp.model.drafter import Layer
from dfl_mp.model.mask import query_spans
from dfl_mp.model.shapes import Blocks, Masks, PackTensors
from dfl_mp.specs import DrafterSpec
from dfl_mp.train.step import TrainStep


class Workaround:
    """Changes torch and the product's mask for this interpreter; afterwards gives out the lock of a step."""

    def __init__(self, cell: Cell) -> None:
        self._lock, self._kind = threading.RLock(), cell.workaround
        if cell.workaround == FLAG_FALSE:
            symbolic_trace.is_fx_symbolic_tracing = lambda: False  # type: ignore[assignment]
        elif cell.workaround == FLAG_LOCAL:
            make_flag_thread_local()
        build = created_masks if cell.mask == "create" else product.make_masks
        product.make_masks = self._locked(build) if cell.workaround == LOCK_MASK else build

    def of_step(self, step: int) -> AbstractContextManager[Any]:
        held = self._kind == LOCK_ALL or (self._kind == LOCK_FIRST and step == 0)
        return self._lock if held else nullcontext()

    def _locked(self, build: Any) -> Any:
        @functools.wraps(build)
        def build_alone(*args: Any) -> Masks:
            with self._lock:
                return build(*args)

        return build_alone


class _LocalFlag(ModuleType):
    """`torch.fx._symbolic_trace` for those who read and write its flag from outside: each thread has its own."""

    _own = threading.local()

    @property
    def _is_fx_tracing_flag(self) -> bool:
        return getattr(_LocalFlag._own, "value", False)

    @_is_fx_tracing_flag.setter
    def _is_fx_tracing_flag(self, value: bool) -> None:
        _LocalFlag._own.value = value


def make_flag_thread_local() -> None:
    """Give each thread its own tracing flag, as torch 2.14 does. Raises RuntimeError where torch already does.

    The module's own functions reach the global past any property, so the three that use it are replaced as well.
    """
    if "_is_fx_tracing_flag" not in vars(symbolic_trace):
        raise RuntimeError(f"torch {torch.__version__} keeps the flag per thread by itself")
    sys.modules[symbolic_trace.__name__].__class__ = _LocalFlag
    trace = symbolic_trace.Tracer.trace

    @functools.wraps(trace)
    def trace_in_this_thread(*args: Any, **kwargs: Any) -> Any:
        before = symbolic_trace._is_fx_tracing_flag
        symbolic_trace._is_fx_tracing_flag = True
        try:
            return trace(*args, **kwargs)
        finally:
            symbolic_trace._is_fx_tracing_flag = before

    symbolic_trace.Tracer.trace = trace_in_this_thread  # type: ignore[method-assign]
    symbolic_trace.is_fx_tracing = lambda: symbolic_trace._is_fx_tracing_flag
    symbolic_trace.is_fx_symbolic_tracing = lambda: (
        symbolic_trace._is_fx_tracing_flag and not torch.compiler.is_compiling()
    )


def created_masks(pack: PackTensors, blocks: Blocks, spec: DrafterSpec, attention: str) -> Masks:
    """`make_masks` of the product by evaluating the rule for every pair of query and key. Full attention only."""
    spans = query_spans(pack, spec.block_size, None)
    (B, M), S = spans.low.shape, pack.document_BS.shape[1]

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        context = (k >= spans.low[b, q]) & (k < spans.high[b, q])
        return context | ((k >= spans.own[b, q]) & (k < spans.end[b, q]))

    create: Any = create_mask if attention == "dense" else create_block_mask
    full = create(mask_mod, B, None, M, S + M, device=spans.low.device)
    return Masks(live_BM=blocks.live_BN.repeat_interleave(spec.block_size, dim=1), full=full, sliding=None)


class _CheckpointedLayer(Layer):
    """A compiled layer whose activations are computed again in the backward, which calls compiled code from there."""

    compiled: Any
    reentrant: bool

    def forward(
        self, x_BMH: Tensor, cos_sin: Any, context: tuple[Tensor, Tensor], mask: object, drop_first_of: int = 0
    ) -> Tensor:
        def run(x: Tensor, cos: Tensor, sin: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self.compiled(x, (cos, sin), (k, v), mask, drop_first_of)

        # A reentrant checkpoint only sees tensors that are arguments themselves.
        args = (x_BMH, *cos_sin, *context)
        return checkpoint(run, *args, use_reentrant=self.reentrant, preserve_rng_state=False)


def compile_forward(step: TrainStep, cell: Cell, backend: str = "inductor") -> None:
    """Set the step's forward: compiled as a whole, on a CPU too, or layer by layer inside their checkpoints.

    Masks are made by the host at every step, as other trainers do, not replayed from a CUDA graph.
    """
    drafter = step.drafter
    step._inputs = product.input_maker(step.spec, step.ends, step.gamma, step.attention)
    options: dict[str, Any] = {"dynamic": False, "fullgraph": True, "backend": backend}
    if cell.checkpoint == "off":
        step._forward = torch.compile(drafter.forward, **options)
        return
    for layer in drafter.layers:
        layer.compiled = torch.compile(MethodType(Layer.forward, layer), **options)
        layer.reentrant = cell.checkpoint == "reentrant"
        layer.__class__ = _CheckpointedLayer
    step._forward = drafter.forward
