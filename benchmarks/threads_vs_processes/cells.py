"""What is run: one factor at a time away from a base cell, most telling first."""

from __future__ import annotations

from dataclasses import dataclass, replace

NONE, LOCK_MASK, LOCK_FIRST, LOCK_ALL = "none", "lock_mask", "lock_first", "lock_all"
FLAG_FALSE, FLAG_LOCAL = "flag_false", "flag_local"


@dataclass(frozen=True)
class Cell:
    """One line of the table. The base is: threads as they are, cold cache, one length, no checkpointing, own mask."""

    how: str
    """"alone", "threads" or "processes"."""
    steps: int
    """Steps that every drafter has to do; all go on until the last one has done them."""
    workaround: str = NONE
    cache: str = "cold"
    """"cold": an empty compile cache; "warm": the one that the lone drafter left with the same other factors."""
    lengths: str = "fixed"
    """"fixed", or "varying": three lengths in turn, each a compile of its own."""
    checkpoint: str = "off"
    """"off": the forward compiled as a whole; "reentrant", "non_reentrant": layers compiled, checkpoints outside."""
    mask: str = "direct"
    """"direct": the project's BlockMask from anchors; "create": `create_block_mask` on the same rule."""

    @property
    def name(self) -> str:
        base = Cell(self.how, self.steps)
        factors = ("workaround", "cache", "lengths", "checkpoint", "mask")
        changed = [str(getattr(self, f)) for f in factors if getattr(self, f) != getattr(base, f)]
        return " ".join([self.how, *changed])

    @property
    def kin(self) -> tuple[str, str]:
        """Cells of one kin train on the same packs with the same compiled regions."""
        return self.lengths, self.checkpoint


def small_cells(long: int, short: int) -> list[Cell]:
    """`long` steps for the lone drafter and for the processes of the base, `short` for all others."""
    alone, threads, processes = (Cell(how, short) for how in ("alone", "threads", "processes"))
    locks = [replace(threads, workaround=w) for w in (FLAG_FALSE, FLAG_LOCAL, LOCK_FIRST, LOCK_MASK, LOCK_ALL)]
    varying = {"lengths": "varying"}
    kept = {"checkpoint": "non_reentrant"}
    return [
        replace(alone, steps=long),
        threads,
        replace(processes, steps=long),
        replace(threads, cache="warm"),
        replace(processes, cache="warm", steps=long),
        *locks,
        replace(alone, **varying),
        replace(threads, **varying),
        replace(threads, workaround=LOCK_FIRST, **varying),
        replace(processes, **varying),
        replace(alone, **kept),
        replace(threads, **kept),
        replace(threads, workaround=LOCK_FIRST, **kept),
        replace(processes, **kept),
        replace(threads, checkpoint="reentrant"),
        replace(threads, mask="create"),
        replace(threads, workaround=LOCK_MASK, mask="create"),
        replace(processes, mask="create"),
        replace(alone, cache="warm"),
        replace(processes, checkpoint="reentrant"),
    ]


def large_cells(steps: int) -> list[Cell]:
    """The base at a size where a compile costs most of a minute: with the cache that the lone drafter left."""
    alone = Cell("alone", steps)
    return [alone, Cell("processes", steps, cache="warm"), Cell("threads", max(1, steps // 3), cache="warm")]
