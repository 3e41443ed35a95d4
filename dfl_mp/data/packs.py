"""Packs by number, out of memory-mapped documents and rows.

Legend: R rows of a pack, S tokens in a row, N anchor slots in a row, D documents.
The folder holds one .npy per array, and `meta.json` with the dtype and shape of each, so that a torn file is seen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dfl_mp.data.anchors import draw_anchors, eligible_positions
from dfl_mp.data.packing import Rows
from dfl_mp.errors import CheckpointError

if TYPE_CHECKING:  # loads transformers, which a drafter does without
    from dfl_mp.data.tokenize import Document

FORMAT = 1
META = "meta.json"


@dataclass(frozen=True)
class Pack:
    """One slot of the ring: R packed rows of S tokens with N anchor slots each."""

    tokens_RS: np.ndarray
    """int32, 0 at padding."""
    document_RS: np.ndarray
    """int32, index of the document within its row, −1 at padding."""
    position_RS: np.ndarray
    """int32, position within the document, 0 at padding."""
    loss_mask_RS: np.ndarray
    """bool, false at padding."""
    anchor_RN: np.ndarray
    """int32, position within the row, ascending; −1 in unused slots, which come last."""


@dataclass(frozen=True)
class PackShape:
    """S, R and N of every pack of a store, how many there are, and the seed of the anchors."""

    seed: int
    row_tokens: int
    rows_per_pack: int
    anchors_per_row: int
    num_packs: int


class PackStore:
    """`store[n]` is pack n, a pure function of (seed, n): any process may open the folder and read any pack."""

    def __init__(self, shape: PackShape, arrays: dict[str, np.ndarray]) -> None:
        self.shape = shape
        self._arrays = arrays

    @staticmethod
    def write(folder: Path, documents: Sequence[Document], rows: Rows, shape: PackShape) -> str:
        """Write all arrays and then `meta.json` into an existing folder; returns the digest of what makes the packs."""
        arrays = {
            "tokens": np.concatenate([d.tokens for d in documents]),
            "loss_mask": np.concatenate([d.loss_mask for d in documents]),
            "document_offsets": np.cumsum([0, *(len(d.tokens) for d in documents)], dtype=np.int64),
            "document_ids": np.array([d.id for d in documents], np.int64),
            "row_offsets": rows.offsets,
            "row_documents": rows.documents,
            "row_quotas": rows.quotas,
            "row_epochs": rows.epochs,
        }
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        listed = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
        meta = json.dumps({"format": FORMAT, "shape": vars(shape), "arrays": listed}, indent=1)
        (folder / META).write_text(meta)
        digest = hashlib.sha256(meta.encode())
        for array in arrays.values():
            digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()

    @staticmethod
    def open(folder: Path) -> PackStore:
        """Map the folder. Raises CheckpointError naming the file that is missing, cut short or of another format."""
        meta = _read_meta(folder / META)
        try:
            shape, listed = PackShape(**meta["shape"]), dict(meta["arrays"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{folder / META}: not a list of packs: {error}") from None
        return PackStore(shape, {name: _map(folder / f"{name}.npy", *listed[name]) for name in listed})

    def __len__(self) -> int:
        return self.shape.num_packs

    def __getitem__(self, n: int) -> Pack:
        """Pack n, freshly made. Raises IndexError outside 0 … len − 1."""
        if not 0 <= n < len(self):
            raise IndexError(f"pack {n} of {len(self)}")
        R, S, N = self.shape.rows_per_pack, self.shape.row_tokens, self.shape.anchors_per_row
        pack = Pack(
            np.zeros((R, S), np.int32),
            np.full((R, S), -1, np.int32),
            np.zeros((R, S), np.int32),
            np.zeros((R, S), bool),
            np.full((R, N), -1, np.int32),
        )
        for r in range(R):
            self._fill(pack, r, n * R + r)
        return pack

    def documents_of(self, n: int) -> list[list[int]]:
        """Ids of the documents in each row of pack n."""
        R, arrays = self.shape.rows_per_pack, self._arrays
        return [
            arrays["document_ids"][arrays["row_documents"][slice(*arrays["row_offsets"][row : row + 2])]].tolist()
            for row in range(n * R, n * R + R)
        ]

    def _fill(self, pack: Pack, r: int, row: int) -> None:
        arrays = self._arrays
        items = slice(*arrays["row_offsets"][row : row + 2])
        epoch, at, slot = int(arrays["row_epochs"][row]), 0, 0
        row_items = zip(arrays["row_documents"][items].tolist(), arrays["row_quotas"][items].tolist(), strict=True)
        for index, (document, quota) in enumerate(row_items):
            begin, end = arrays["document_offsets"][document : document + 2].tolist()
            here, mask = slice(at, at + end - begin), arrays["loss_mask"][begin:end]
            pack.tokens_RS[r, here] = arrays["tokens"][begin:end]
            pack.document_RS[r, here] = index
            pack.position_RS[r, here] = np.arange(end - begin, dtype=np.int32)
            pack.loss_mask_RS[r, here] = mask
            key = (self.shape.seed, epoch, int(arrays["document_ids"][document]))
            anchors = draw_anchors(eligible_positions(mask), quota, key)
            pack.anchor_RN[r, slot : slot + len(anchors)] = anchors + at
            at, slot = at + end - begin, slot + len(anchors)


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not packs of format {FORMAT}")
    return meta


def _map(path: Path, dtype: str, shape: list[int]) -> np.ndarray:
    """The array without the memmap class, whose slices cost far more than an array's."""
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if mapped.dtype.str != dtype or list(mapped.shape) != shape:
        raise CheckpointError(f"{path}: holds {mapped.dtype.str} {list(mapped.shape)}, not {dtype} {shape}")
    return np.asarray(mapped)
