"""The target's state machine: a queue of computes and the contents of its slots. Pure; guarded by its role's lock."""

from __future__ import annotations

from collections import deque

from dfl_mp import messages as m
from dfl_mp.messages import Message


class Target:
    """The control thread feeds messages; the main thread takes `next_compute` and reports `computed`."""

    def __init__(self, ring: m.RingHandle) -> None:
        self.ring = ring
        self.queue: deque[m.Compute] = deque()
        self.now: m.Compute | None = None
        self.slots: list[tuple[int, int] | None] = [None] * ring.num_slots
        self.seq = 0
        self.outbox: list[Message] = []
        self.stopped = False

    def hello(self) -> m.TargetHello:
        """First word on a new link."""
        self.outbox.clear()
        running = [self.now] if self.now is not None else []
        busy = tuple((c.pack, c.slot) for c in [*running, *self.queue])
        return m.TargetHello(ring=self.ring, slots=tuple(self.slots), busy=busy)

    def handle(self, message: Message) -> None:
        """One message of the coordinator."""
        match message:
            case m.Compute():
                self.queue.append(message)
            case m.Stop():
                self.stopped = True

    def next_compute(self) -> m.Compute | None:
        """The next order; its slot counts as empty from now on."""
        assert self.now is None
        if self.queue:
            self.now = self.queue.popleft()
            self.slots[self.now.slot] = None
        return self.now

    def computed(self) -> None:
        """The slot is full; the GPU was waited for on the host."""
        assert self.now is not None
        self.seq += 1
        self.slots[self.now.slot] = (self.now.pack, self.seq)
        self.outbox.append(m.FeaturesReady(pack=self.now.pack, slot=self.now.slot, seq=self.seq))
        self.now = None
