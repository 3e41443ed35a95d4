"""Documents -> rows: who sits beside whom in which epoch, and how many anchors each document gets.

Legend: D documents, S tokens in a row, N anchor slots in a row, R rows in a pack, K block size.
A pure function of lengths, seed and settings; the rows of all epochs form one stream, pack n is rows [n·R, (n+1)·R).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

import numpy as np

from dfl_mp.data.anchors import ORDER, generator

_WINDOW = 1024
"""Documents sorted by length at a time: enough to fill rows, few enough that neighbours change from epoch to epoch."""
_OPEN = 1024
"""Rows with room kept open."""
SLOTS_USED = 0.97
"""Share of the anchor slots, at least, where N is chosen."""


@dataclass(frozen=True)
class Rows:
    """Row i holds documents `documents[offsets[i] : offsets[i + 1]]`, in that order."""

    offsets: np.ndarray
    """int64 [rows + 1]."""
    documents: np.ndarray
    """int32 [items], index of the document."""
    quotas: np.ndarray
    """int32 [items], anchors of that document in that row."""
    epochs: np.ndarray
    """int32 [rows]."""

    def __len__(self) -> int:
        return len(self.epochs)

    def first(self, most: int) -> Rows:
        items = int(self.offsets[most])
        return Rows(self.offsets[: most + 1], self.documents[:items], self.quotas[:items], self.epochs[:most])


def pack_epoch(lengths_D: np.ndarray, row_tokens: int, most_documents: int, key: tuple[int, int]) -> list[list[int]]:
    """The rows of epoch key = (seed, epoch): every document once, no row over `row_tokens` or `most_documents`.

    Best fit: documents come in the epoch's order, a window at a time and the longest of it first, each into the fullest
    open row that still takes it. The rows are shuffled at the end, since best fit finishes the full ones first.
    """
    random = generator(key[0], ORDER, key[1])
    order = random.permutation(len(lengths_D))
    shortest = int(lengths_D.min())
    rows: list[list[int]] = []
    open_rows: list[tuple[int, int]] = []  # (free tokens, row), ascending
    for at in range(0, len(order), _WINDOW):
        window = order[at : at + _WINDOW]
        for document in window[np.argsort(-lengths_D[window], kind="stable")].tolist():
            length = int(lengths_D[document])
            best = bisect_left(open_rows, (length, -1))
            if best < len(open_rows):
                free, row = open_rows.pop(best)
            else:
                free, row = row_tokens, len(rows)
                rows.append([])
            rows[row].append(document)
            if free - length >= shortest and len(rows[row]) < most_documents:
                insort(open_rows, (free - length, row))
                if len(open_rows) > _OPEN:
                    open_rows.pop(0)
    return [rows[i] for i in random.permutation(len(rows))]


def split_slots(wanted: np.ndarray, slots: int) -> np.ndarray:
    """Anchors for each document of a row, int64: what it wants if the slots suffice, else one each and the rest in
    proportion, by largest remainder.  wanted [10, 30], 20 slots -> [5, 15]
    """
    if wanted.sum() <= slots:
        return wanted.astype(np.int64)
    more = wanted - 1
    exact = more * (slots - len(wanted)) / more.sum()
    share: np.ndarray = np.floor(exact).astype(np.int64)
    left = slots - len(wanted) - int(share.sum())
    share[np.argsort(share - exact, kind="stable")[:left]] += 1
    return share + 1


def share_used(wanted_rows: np.ndarray, slots: int) -> float:
    """Share of the slots that rows wanting so many anchors fill.  wanted [100, 500], 128 slots -> 228 / 256"""
    return int(np.minimum(wanted_rows, slots).sum()) / (slots * len(wanted_rows))


def choose_slots(wanted_D: np.ndarray, rows: list[list[int]], block_size: int) -> int:
    """N: the largest of which `rows`, those of one epoch, use SLOTS_USED or more; a multiple of 32 with N·K one of 128.

    An empty slot costs as much as a trained one, and a position left out may be drawn in the next epoch. N is larger
    where more than 1 % of the rows would lose documents to it, since each document takes a slot.
    One row wants 100 and one 500, K = 16 -> 96: of 128 slots 89 % would be used.
    """
    step = math.lcm(32, 128 // math.gcd(128, block_size))
    wanted_rows = np.array([wanted_D[row].sum() for row in rows])
    steps = range(1, 2 + int(wanted_rows.mean() / SLOTS_USED) // step)
    filled = bisect_right(steps, -SLOTS_USED, key=lambda n: -share_used(wanted_rows, n * step))
    documents = float(np.quantile([len(row) for row in rows], 0.99))
    return step * max(1, filled, math.ceil(documents / step))


def plan_rows(
    lengths_D: np.ndarray, wanted_D: np.ndarray, row_tokens: int, slots: int, length: tuple[int, int | None, int]
) -> Rows:
    """The stream of rows; length = (seed, rows wanted or None, epochs). With rows wanted, as many epochs as that takes.

    `wanted_D` is each document's eligible positions, capped per document; all are at least 1.
    """
    seed, most_rows, epochs = length
    rows: list[list[int]] = []
    row_epochs: list[int] = []
    epoch = 0
    while (len(rows) < most_rows) if most_rows is not None else (epoch < epochs):
        found = pack_epoch(lengths_D, row_tokens, slots, (seed, epoch))
        rows += found
        row_epochs += [epoch] * len(found)
        epoch += 1
    rows, row_epochs = rows[:most_rows], row_epochs[:most_rows]
    quotas = [split_slots(wanted_D[row], slots) for row in rows]
    return Rows(
        offsets=np.cumsum([0, *map(len, rows)], dtype=np.int64),
        documents=np.concatenate([np.array(row, np.int32) for row in rows]),
        quotas=np.concatenate(quotas).astype(np.int32),
        epochs=np.array(row_epochs, np.int32),
    )
