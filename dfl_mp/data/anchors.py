"""Which positions a document is anchored at in one epoch: a draw that depends on nothing but seed, epoch and document.

Legend: E eligible positions of a document.
"""

from __future__ import annotations

import numpy as np

ORDER, ANCHORS = 1, 2
"""Streams of random numbers: the order of an epoch's documents and rows; the anchors of a document."""


def generator(seed: int, stream: int, *key: int) -> np.random.Generator:
    """Random numbers of one purpose: the same on every machine and in every process."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream, *key))))


def eligible_positions(loss_mask: np.ndarray) -> np.ndarray:
    """Positions `a` with `loss_mask[a]` and `loss_mask[a + 1]`, int64 [E] ascending.

    The last position is never one; a position fewer than K from the end is.  [0, 1, 1, 1] -> [1, 2]
    """
    return np.flatnonzero(loss_mask[:-1] & loss_mask[1:])


def draw_anchors(eligible: np.ndarray, quota: int, key: tuple[int, int, int]) -> np.ndarray:
    """The first `quota` of the permutation of `eligible` from key = (seed, epoch, document id), ascending.

    A smaller quota is a subset of a larger one's anchors.
    """
    if quota >= len(eligible):
        return eligible
    seed, epoch, document_id = key
    return np.sort(generator(seed, ANCHORS, epoch, document_id).permutation(eligible)[:quota])
