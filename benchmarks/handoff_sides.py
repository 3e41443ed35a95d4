"""The processes of `benchmarks.handoff`, each on its own GPU: told what to do by a line of JSON, they answer by one.

`owner` is a target's ring; `reader` a drafter's end of it: its copies alone and beside its training step; `plain` sees
both GPUs and copies from one to the other.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.shapes import VOCAB, random_pack, random_step
from dfl_mp import messages as m
from dfl_mp.model.shapes import PackTensors
from dfl_mp.protocol.drafter import Drafter
from dfl_mp.roles.common import device
from dfl_mp.roles.intake import Intake
from dfl_mp.roles.worker import end_process_on_thread_error
from dfl_mp.train.clock import cuda_clock, host_clock
from dfl_mp.train.step import TrainStep
from dfl_mp.transport.ring import DTYPES, RingOwner, RingView, slot_bytes

TARGET = "target-0.1"
SLOTS = 4
ROUNDS = 3
BYTES_A_ROUND = 16e9
COPIED_WITHIN_S = 60.0


def sync(on: torch.device) -> None:
    if on.type == "cuda":
        torch.cuda.synchronize(on)


def rate(copies: Callable[[int], object], size: int, on: torch.device) -> float:
    """GB/s of so many copies of `size` bytes as fill some rounds; the median of them."""
    number = max(4, min(400, int((BYTES_A_ROUND if on.type == "cuda" else 1e8) / size)))
    found = []
    for _ in range(ROUNDS + 1):
        sync(on)
        began = time.perf_counter()
        copies(number)
        sync(on)
        found.append(number * size / (time.perf_counter() - began) / 1e9)
    return round(statistics.median(found[1:]), 1)


class Solo:
    """The face of a worker's control thread that `Intake` needs, without a link: the coordinator is this process."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.over = False

    def report(self, change: Callable[[], object]) -> None:
        with self.changed:
            change()
            self.changed.notify_all()

    def wait_for(self, choose: Callable[[], Any]) -> Any:
        with self.changed:
            while not self.over:
                if (chosen := choose()) is not None:
                    return chosen
                self.changed.wait(timeout=1.0)
        return None


class Feed:
    """A drafter's real copy thread and state machine, given pack after pack as a coordinator would: two in hand."""

    def __init__(self, handle: m.RingHandle, on: torch.device) -> None:
        self.handle, self.control, self.machine = handle, Solo(), Drafter(per_step=1 << 30)
        self.intake = Intake(self.control, self.machine, on)  # type: ignore[arg-type]
        self.intake.start()
        self.next = 0

    def assign(self) -> None:
        n, self.next = self.next, self.next + 1
        ref = m.SlotRef(target=TARGET, slot=n % self.handle.num_slots, seq=n)
        self.control.report(lambda: self.machine.handle(m.Train(pack=n, ref=ref, lease=n, ring=self.handle)))

    def take(self) -> tuple[int, Tensor]:
        """The lowest pack, once it is copied. Raises TimeoutError."""
        held, until = self.machine.held, time.monotonic() + COPIED_WITHIN_S
        with self.control.changed:
            while not (held and held[min(held)].state == "copied"):
                if time.monotonic() > until:
                    raise TimeoutError(f"no pack was copied within {COPIED_WITHIN_S:.0f} s")
                self.control.changed.wait(timeout=1.0)
            number = min(held)
            held[number].state = "computing"
        return number, self.intake.take(number)

    def done(self, number: int, buffer: Tensor) -> None:
        self.intake.give_back(buffer)
        self.control.report(lambda: (self.machine.computed(number), self.machine.outbox.clear()))

    def run(self, number: int, work: Callable[[int, Tensor], None]) -> None:
        """So many packs through the work, with the next one being copied meanwhile."""
        for _ in range(min(2, number)):
            self.assign()
        for i in range(number):
            pack, buffer = self.take()
            work(i, buffer)
            self.done(pack, buffer)
            if i + 2 < number:
                self.assign()

    def end(self) -> None:
        self.control.over = True
        self.control.report(lambda: None)
        self.intake.join(timeout=10.0)


class Reader:
    """A drafter's end."""

    def __init__(self) -> None:
        self.on = device()

    def copies(self, order: dict[str, Any]) -> dict[str, Any]:
        """GB/s from the ring: all enqueued and one wait (`raw`), a host wait each (`waited`), the next enqueued before
        the host waits for the one before (`pipelined`), and the drafter's own copy thread (`intake`)."""
        handle = ring_of(order)
        size = slot_bytes(handle.shape, handle.dtype)
        found = {"mb": round(size / 1e6, 1), **self._from_view(handle, size), "intake": self._by_intake(handle, size)}
        if self.on.type == "cuda":
            torch.cuda.ipc_collect()
            torch.cuda.empty_cache()
        return found

    def _from_view(self, handle: m.RingHandle, size: int) -> dict[str, float]:
        view = RingView(handle, self.on)
        buffers = [torch.empty(handle.shape, dtype=DTYPES[handle.dtype], device=self.on) for _ in range(2)]
        stream = torch.cuda.Stream(self.on) if self.on.type == "cuda" else None
        ways = {"raw": self._raw, "waited": self._waited, "pipelined": self._pipelined}
        return {
            name: rate(lambda n, way=way: way(view, buffers, n, stream), size, self.on)  # type: ignore[misc]
            for name, way in ways.items()
        }

    def _by_intake(self, handle: m.RingHandle, size: int) -> float:
        feed = Feed(handle, self.on)
        found = rate(lambda n: feed.run(n, lambda i, buffer: None), size, self.on)
        feed.end()
        return found

    def _raw(self, view: RingView, buffers: list[Tensor], number: int, stream: torch.cuda.Stream | None) -> None:
        with torch.cuda.stream(stream):
            for i in range(number):
                buffers[i % 2].copy_(view.slot(i % SLOTS), non_blocking=True)

    def _waited(self, view: RingView, buffers: list[Tensor], number: int, stream: torch.cuda.Stream | None) -> None:
        with torch.cuda.stream(stream):
            for i in range(number):
                buffers[i % 2].copy_(view.slot(i % SLOTS), non_blocking=True)
                if stream is not None:
                    stream.synchronize()

    def _pipelined(self, view: RingView, buffers: list[Tensor], number: int, stream: torch.cuda.Stream | None) -> None:
        before: torch.cuda.Event | None = None
        with torch.cuda.stream(stream):
            for i in range(number):
                buffers[i % 2].copy_(view.slot(i % SLOTS), non_blocking=True)
                if stream is not None:
                    event = torch.cuda.Event()
                    event.record()
                    if before is not None:
                        before.synchronize()
                    before = event

    def exposed(self, order: dict[str, Any]) -> dict[str, Any]:
        """The training step with features that lie there, and with features that its copy thread brings meanwhile."""
        handle, size = ring_of(order), order["size"]
        step = random_step(size, self.on, dtype="bfloat16" if self.on.type == "cuda" else "float32")
        rows, tokens, _ = handle.shape
        packs = [random_pack(rows, tokens, order["anchors"], VOCAB[size], 4, seed=i).to(self.on) for i in range(4)]
        still = torch.randn(handle.shape, device=self.on).to(DTYPES[handle.dtype])
        feed = Feed(handle, self.on)
        self._steps(step, packs, 2, still, None)
        self._steps(step, packs, 3, still, feed)
        without, with_copies, waits = [], [], []
        for _ in range(ROUNDS):
            without.append(self._steps(step, packs, order["packs"], still, None)[0])
            seconds, waited = self._steps(step, packs, order["packs"], still, feed)
            with_copies.append(seconds)
            waits.append(waited / seconds)
        feed.end()
        alone, beside = statistics.median(without), statistics.median(with_copies)
        return {
            "size": size,
            "mb": round(slot_bytes(handle.shape, handle.dtype) / 1e6, 1),
            "packs": order["packs"],
            "pack_ms_without_copies": round(alone / order["packs"] * 1e3, 2),
            "pack_ms_with_copies": round(beside / order["packs"] * 1e3, 2),
            "rounds_ms": [[round(s / order["packs"] * 1e3, 2) for s in side] for side in (without, with_copies)],
            "exposed_share": round(beside / alone - 1, 4),
            "waited_share": round(statistics.median(waits), 4),
        }

    def _steps(
        self, step: TrainStep, packs: list[PackTensors], number: int, still: Tensor, feed: Feed | None
    ) -> tuple[float, float]:
        """(seconds of so many packs, of which the device waited for features), the first copy left out."""
        clock: Any = cuda_clock() if self.on.type == "cuda" else host_clock()
        began = 0.0

        def work(i: int, features: Tensor) -> None:
            nonlocal began
            began = began or time.perf_counter()
            with clock.working(waited=True):
                step.accumulate(features, packs[i % len(packs)], 0)

        sync(self.on)
        if feed is None:
            for i in range(number):
                work(i, still)
        else:
            feed.run(number, work)
        sync(self.on)
        seconds = time.perf_counter() - began
        step.discard()
        return seconds, clock.read().wait_s


class Owner:
    """A target's ring, remade for each shape."""

    def __init__(self) -> None:
        self.on, self.ring = device(), None

    def ring_of_shape(self, order: dict[str, Any]) -> dict[str, Any]:
        self.ring = None
        if self.on.type == "cuda":
            torch.cuda.ipc_collect()
            torch.cuda.empty_cache()
        layout = (SLOTS, tuple(order["shape"]), order["dtype"])
        make = RingOwner.on_cuda if self.on.type == "cuda" else RingOwner.on_shm
        self.ring = make(self.on if self.on.type == "cuda" else "bench", *layout)  # type: ignore[arg-type]
        for i in range(SLOTS):
            self.ring.slot(i).normal_()
        sync(self.on)
        train = m.Train(pack=0, ref=m.SlotRef(target=TARGET, slot=0, seq=0), lease=0, ring=self.ring.handle)
        return {"ring": m.encode(train).hex()}


class Plain:
    """One process that sees the reader's GPU as its first and the owner's as its last."""

    def copies(self, order: dict[str, Any]) -> dict[str, Any]:
        cuda = torch.cuda.is_available()
        to = torch.device("cuda", 0) if cuda else torch.device("cpu")
        source = torch.device("cuda", torch.cuda.device_count() - 1) if cuda else to
        dtype, shape = DTYPES[order["dtype"]], tuple(order["shape"])
        slots = [torch.randn(shape, device=source).to(dtype) for _ in range(SLOTS)]
        buffers = [torch.empty(shape, device=to, dtype=dtype) for _ in range(2)]

        def copies(number: int) -> None:
            for i in range(number):
                buffers[i % 2].copy_(slots[i % SLOTS], non_blocking=True)
            sync(source)

        return {"plain": rate(copies, slots[0].nbytes, to)}


def ring_of(order: dict[str, Any]) -> m.RingHandle:
    train = m.decode(bytes.fromhex(order["ring"]))
    assert isinstance(train, m.Train)
    return train.ring


SIDES: dict[str, Callable[[], Any]] = {"owner": Owner, "reader": Reader, "plain": Plain}


def main() -> None:
    end_process_on_thread_error()
    side = SIDES[sys.argv[1]]()
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(side, order["do"])(order)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
