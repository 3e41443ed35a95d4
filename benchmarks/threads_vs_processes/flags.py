"""What torch, as installed, keeps once per process while something is traced or compiled: looked at, not assumed."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.fx._symbolic_trace as symbolic_trace
from torch import Tensor, nn

WAIT_S = 20.0


class _Paused(nn.Module):
    """Stops in the middle of its own trace."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.go_on = threading.Event(), threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        self.inside.set()
        self.go_on.wait(WAIT_S)
        return x + 1


def seen_from_another_thread() -> dict[str, bool | None]:
    """For each piece of state: does this thread see what another one is doing? None: nothing is set by a compile.

    Two short-lived threads are started.
    """
    original_call = nn.Module.__call__
    module = _Paused()
    tracing = threading.Thread(target=symbolic_trace.symbolic_trace, args=(module,), daemon=True)
    tracing.start()
    assert module.inside.wait(WAIT_S)
    seen: dict[str, bool | None] = {
        "fx tracing flag": bool(symbolic_trace.is_fx_symbolic_tracing()),
        "fx patches of nn.Module.__call__": nn.Module.__call__ is not original_call,
        "fx current patcher": getattr(symbolic_trace, "CURRENT_PATCHER", None) is not None,
    }
    module.go_on.set()
    tracing.join(WAIT_S)
    return seen | _settings()


def _settings() -> dict[str, bool | None]:
    inside, go_on = threading.Event(), threading.Event()
    before = torch._dynamo.config.capture_scalar_outputs
    session: Any = getattr(torch.compiler, "_compile_session_context", None)

    def hold() -> None:
        with torch._dynamo.config.patch(capture_scalar_outputs=not before):
            if session is None:
                inside.set()
                go_on.wait(WAIT_S)
            else:
                with session():
                    inside.set()
                    go_on.wait(WAIT_S)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert inside.wait(WAIT_S)
    seen: dict[str, bool | None] = {
        "is_compiling during a compile": None if session is None else torch.compiler.is_compiling(),
        "dynamo config": torch._dynamo.config.capture_scalar_outputs != before,
    }
    go_on.set()
    holder.join(WAIT_S)
    return seen
