"""What is run: one factor at a time away from a base cell, most telling first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

NONE, LOCK_MASK, LOCK_FIRST, LOCK_ALL = "none", "lock_mask", "lock_first", "lock_all"
FLAG_FALSE, FLAG_LOCAL = "flag_false", "flag_local"
FACTORS = ("workaround", "cache", "lengths", "checkpoint", "mask")


@dataclass(frozen=True)
class Cell:
    """One line of the table. The base is: threads as they are, cold cache, one length, no checkpointing, own mask."""

    how: str
    """"alone", "threads" or "processes"."""
    steps: int
    """Steps that every drafter has to do after its warm-up; all go on until the last one has done them."""
    workaround: str = NONE
    cache: str = "cold"
    """"cold": an empty compile cache; "warm": the one that the lone drafter left with the same other factors."""
    lengths: str = "fixed"
    """"fixed", or "varying": two lengths in turn, each a compile of its own."""
    checkpoint: str = "off"
    """"off": the forward compiled as a whole; "reentrant", "non_reentrant": layers compiled, checkpoints outside."""
    mask: str = "direct"
    """"direct": the project's BlockMask from anchors; "create": `create_block_mask` on the same rule."""

    @property
    def name(self) -> str:
        base = Cell(self.how, self.steps)
        changed = [str(getattr(self, f)) for f in FACTORS if getattr(self, f) != getattr(base, f)]
        return " ".join([self.how, *changed])

    @property
    def kin(self) -> tuple[str, str]:
        """Cells of one kin train on the same packs with the same compiled regions."""
        return self.lengths, self.checkpoint


def small_cells(long: int, short: int) -> list[Cell]:
    """`long` steps for the lone drafter and the processes of the base, `short` for all others.

    Those that take as long to compile stand together, since they start beside each other; the slowest come last.
    """
    alone, threads, processes = (Cell(how, short) for how in ("alone", "threads", "processes"))
    kept, varying = {"checkpoint": "non_reentrant"}, {"lengths": "varying"}
    return [
        replace(alone, steps=long),
        threads,
        replace(processes, steps=long),
        replace(threads, mask="create"),
        replace(threads, workaround=FLAG_FALSE),
        replace(threads, workaround=FLAG_LOCAL),
        replace(threads, workaround=LOCK_FIRST),
        replace(threads, workaround=LOCK_ALL),
        replace(alone, **kept),
        replace(threads, **kept),
        replace(threads, workaround=LOCK_FIRST, **kept),
        replace(threads, checkpoint="reentrant"),
        replace(processes, **kept),
        replace(threads, workaround=LOCK_MASK, mask="create"),
        replace(threads, workaround=LOCK_MASK),
        replace(processes, mask="create"),
        replace(alone, cache="warm"),
        replace(threads, cache="warm"),
        replace(processes, cache="warm", steps=long),
        replace(threads, cache="warm", workaround=FLAG_FALSE),
        replace(alone, cache="warm", mask="create"),
        replace(alone, **varying),
        replace(threads, **varying),
        replace(threads, workaround=LOCK_FIRST, **varying),
        replace(processes, **varying),
        replace(processes, checkpoint="reentrant"),
    ]


def large_cells(steps: int) -> list[Cell]:
    """The base at a size where a compile costs most of a minute: with the cache that the lone drafter left."""
    alone = Cell("alone", steps)
    return [alone, Cell("processes", steps, cache="warm"), Cell("threads", max(1, steps // 3), cache="warm")]


def waves(cells: Sequence[Cell], at_once: int) -> list[list[Cell]]:
    """In order, at most `at_once` together; warm cells apart from cold ones, which compile for much longer."""
    found: list[list[Cell]] = []
    for cell in cells:
        last = found[-1] if found else []
        if last and len(last) < at_once and last[0].cache == cell.cache:
            last.append(cell)
        else:
            found.append([cell])
    return found
