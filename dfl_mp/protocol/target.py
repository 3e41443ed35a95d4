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
        self.running: deque[m.Compute] = deque()
        """Taken and not yet computed, the oldest first; they end in this order."""
        self.slots: list[tuple[int, int] | None] = [None] * ring.num_slots
        self.seq = 0
        self.outbox: list[Message] = []
        self.stopped = False

    def hello(self) -> m.TargetHello:
        """First word on a new link."""
        self.outbox.clear()
        busy = tuple((c.pack, c.slot) for c in [*self.running, *self.queue])
        return m.TargetHello(ring=self.ring, slots=tuple(self.slots), busy=busy)

    def handle(self, message: Message) -> None:
        """One message of the coordinator."""
        match message:
            case m.Compute():
                self.queue.append(message)
            case m.Stop():
                self.stopped = True

    @property
    def now(self) -> m.Compute | None:
        """The oldest order that is running."""
        return self.running[0] if self.running else None

    def next_compute(self) -> m.Compute | None:
        """The next order, begun while earlier ones may still run; its slot counts as empty from now on."""
        if not self.queue:
            return None
        order = self.queue.popleft()
        self.running.append(order)
        self.slots[order.slot] = None
        return order

    def computed(self) -> None:
        """The slot of the oldest running order is full; the GPU was waited for on the host."""
        order = self.running.popleft()
        self.seq += 1
        self.slots[order.slot] = (order.pack, self.seq)
        self.outbox.append(m.FeaturesReady(pack=order.pack, slot=order.slot, seq=self.seq))
