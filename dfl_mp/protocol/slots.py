"""The slot table: which slot of which living target is free. Pure. A free slot is the only permission to compute."""

from __future__ import annotations

from dfl_mp.messages import RingHandle


class SlotTable:
    """Slots of all living targets; a slot holds the number of the pack that it is leased for, or None."""

    def __init__(self) -> None:
        self._slots: dict[tuple[str, int], int | None] = {}
        self.rings: dict[str, RingHandle] = {}

    def add(self, target: str, ring: RingHandle) -> None:
        self.rings[target] = ring
        self._slots.update({(target, slot): None for slot in range(ring.num_slots)})

    def remove(self, target: str) -> None:
        self.rings.pop(target, None)
        for key in [k for k in self._slots if k[0] == target]:
            del self._slots[key]

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    def pack_in(self, target: str, slot: int) -> int | None:
        return self._slots.get((target, slot))

    def take(self, target: str, slot: int, pack: int) -> None:
        assert (target, slot) in self._slots
        self._slots[target, slot] = pack

    def free(self, target: str, slot: int) -> None:
        """No-op for a target that is dead."""
        if (target, slot) in self._slots:
            self._slots[target, slot] = None

    def first_free(self) -> tuple[str, int] | None:
        """A free slot of the target with the most free slots, so that work spreads over the targets."""
        free: dict[str, list[int]] = {}
        for (target, slot), pack in self._slots.items():
            if pack is None:
                free.setdefault(target, []).append(slot)
        if not free:
            return None
        target = min(free, key=lambda t: (-len(free[t]), t))
        return target, min(free[target])
