"""The copy thread of a drafter: brings packs from target rings into buffers on its own device, one pack ahead.

consumes: packs assigned to the drafter
waits for: an assignment and a free buffer; then for its copy, on the host
unblocked by: Train, or the end of a computation
produces: a full buffer for the main thread, then Copied
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from dfl_mp.errors import TransportError
from dfl_mp.log import say
from dfl_mp.messages import RingProved
from dfl_mp.protocol.drafter import Drafter, Held
from dfl_mp.roles.worker import Control
from dfl_mp.transport.ring import DTYPES, RingView


class Intake(threading.Thread):
    """See the module. The main thread calls `take` and, when the computation is enqueued, `give_back`."""

    def __init__(self, control: Control, machine: Drafter, device: torch.device) -> None:
        super().__init__(name="copy", daemon=True)
        self._control, self._machine, self._device = control, machine, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._views: dict[str, RingView] = {}
        self._free: list[tuple[Tensor, torch.cuda.Event | None]] = []
        self._full: dict[tuple[int, int], Tensor] = {}

    def run(self) -> None:
        while (held := self._control.wait_for(self._next)) is not None:
            try:
                buffer = self._copy(held)
            except TransportError as error:
                say(f"cannot read pack {held.number}: {error}")
                self._control.report(lambda h=held, e=error: self._machine.copy_failed(h, str(e)))
                continue
            self._full[held.number, held.lease] = buffer
            self._control.report(lambda h=held: self._machine.copy_done(h))

    def _next(self) -> Held | None:
        """Under the lock: recycle buffers of packs that are not ours any more, drop dead rings, choose a pack."""
        ours = {(h.number, h.lease) for h in self._machine.held.values()}
        for key in [k for k in self._full if k not in ours]:
            self._free.append((self._full.pop(key), None))
        for target in [t for t in self._views if t not in self._machine.mapped]:
            self._views.pop(target).close()
        self._machine.views_closed()
        return self._machine.next_copy()

    def _copy(self, held: Held) -> Tensor:
        with self._own_stream():
            buffer, event = self._free.pop() if self._free else (self._new_buffer(held), None)
            if event is not None:
                event.wait(self._stream)
            view = self._views.get(held.ref.target) or self._map(held, buffer)
            buffer.copy_(view.slot(held.ref.slot), non_blocking=self._stream is not None)
        if self._stream is not None:
            self._stream.synchronize()
        return buffer

    def _own_stream(self) -> AbstractContextManager[object]:
        """Also where buffers are allocated: the training stream's pool gives out what queued kernels still use."""
        return torch.cuda.stream(self._stream) if self._stream is not None else nullcontext()

    def _map(self, held: Held, buffer: Tensor) -> RingView:
        """First pack from this target: map its ring, prove it, say at which rate it copies (which fills `buffer`)."""
        view = RingView(held.ring, self._device)
        proof = RingProved(target=held.ref.target, kind=held.ring.kind, bytes_per_s=view.rate(buffer))
        self._views[held.ref.target] = view
        self._control.report(lambda: self._machine.outbox.append(proof))
        return view

    def _new_buffer(self, held: Held) -> Tensor:
        return torch.empty(held.ring.shape, dtype=DTYPES[held.ring.dtype], device=self._device)

    def take(self, pack: int) -> Tensor:
        """Main thread: the features [rows, S, F·H] of a pack that is being computed."""
        with self._control.changed:
            return self._full.pop((pack, self._machine.held[pack].lease))

    def give_back(self, buffer: Tensor) -> None:
        """Main thread: all reads of the buffer are enqueued."""
        event = None
        if self._stream is not None:
            event = torch.cuda.Event()
            event.record()
        with self._control.changed:
            self._free.append((buffer, event))
