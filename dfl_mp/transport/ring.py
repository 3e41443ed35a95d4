"""Rings of fixed slots for tensors: a target owns one, drafters map it. Knows nothing of training.

Two kinds behind one face. `shm`: a file in /dev/shm, 0600, on any machine. `cuda`: one device allocation, exported
once by CUDA IPC. A slot is filled and copied as a whole; who may do so when is the protocol's business, not the
ring's. Completion is waited for on the host on both sides.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import torch
from torch import Tensor

from dfl_mp.errors import RefusedMessage, TransportError
from dfl_mp.messages import RingHandle

SHM = Path("/dev/shm")
PREFIX = "dfl-mp-"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
PROOF_BYTES = 1 << 20


def slot_bytes(shape: tuple[int, int, int], dtype: str) -> int:
    """Bytes of one slot of `shape` [rows, tokens, F·H]."""
    rows, tokens, width = shape
    return rows * tokens * width * DTYPES[dtype].itemsize


class RingOwner:
    """The target's end: `slot(i)` is the tensor [rows, tokens, F·H] to fill; `handle` tells others how to map it."""

    def __init__(self, handle: RingHandle, storage: Tensor) -> None:
        self.handle = handle
        self._slots = _views(storage, handle)

    @staticmethod
    def on_shm(name: str, num_slots: int, shape: tuple[int, int, int], dtype: str) -> RingOwner:
        """Allocate in /dev/shm.

        Raises TransportError naming the bytes wanted and free when it does not fit.
        """
        size = num_slots * slot_bytes(shape, dtype)
        stats = os.statvfs(SHM)
        free = stats.f_bavail * stats.f_frsize
        if size > free:
            raise TransportError(f"/dev/shm has {free >> 20} MiB free; a ring of {size >> 20} MiB does not fit")
        path = SHM / name
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
        finally:
            os.close(fd)
        storage = torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
        handle = RingHandle(kind="shm", path=str(path), num_slots=num_slots, shape=shape, dtype=dtype)  # type: ignore[arg-type]
        return RingOwner(handle, storage)

    @staticmethod
    def on_cuda(num_slots: int, shape: tuple[int, int, int], dtype: str, device: torch.device) -> RingOwner:
        """Allocate on the device and export by CUDA IPC.

        Raises TransportError where the driver does not offer CUDA IPC.
        """
        storage = torch.empty(num_slots * slot_bytes(shape, dtype), dtype=torch.uint8, device=device)
        try:
            exported = storage.untyped_storage()._share_cuda_()
        except RuntimeError as error:
            raise TransportError(f"CUDA IPC export failed: {error}") from None
        handle = RingHandle(kind="cuda", cuda=tuple(exported), num_slots=num_slots, shape=shape, dtype=dtype)  # type: ignore[arg-type]
        return RingOwner(handle, storage)

    def slot(self, index: int) -> Tensor:
        return self._slots[index]

    def close(self) -> None:
        """Drop the memory; a file in /dev/shm is removed, mappings of others stay readable."""
        self._slots = []
        if self.handle.kind == "shm":
            Path(self.handle.path).unlink(missing_ok=True)


class RingView:
    """A drafter's mapping of one target's ring. `copy(i, into)` is the only use."""

    def __init__(self, handle: RingHandle, device: torch.device) -> None:
        """Raises TransportError when the ring cannot be mapped, RefusedMessage when the handle is not sane."""
        self.handle = handle
        storage = _map_shm(handle) if handle.kind == "shm" else _map_cuda(handle, device)
        self._slots = _views(storage, handle)

    def slot(self, index: int) -> Tensor:
        """The slot as a tensor [rows, tokens, F·H].

        Raises RefusedMessage for an index out of the ring's bounds.
        """
        if not 0 <= index < len(self._slots):
            raise RefusedMessage(f"slot {index} of a ring of {len(self._slots)}")
        return self._slots[index]

    def close(self) -> None:
        self._slots = []


def _views(storage: Tensor, handle: RingHandle) -> list[Tensor]:
    size = slot_bytes(handle.shape, handle.dtype)
    typed = [storage[i * size : (i + 1) * size].view(DTYPES[handle.dtype]) for i in range(handle.num_slots)]
    return [t.view(handle.shape) for t in typed]


def _map_shm(handle: RingHandle) -> Tensor:
    path = Path(handle.path)
    if path.parent != SHM or not path.name.startswith(PREFIX):
        raise RefusedMessage(f"ring path {handle.path!r} is not one of ours")
    size = handle.num_slots * slot_bytes(handle.shape, handle.dtype)
    try:
        info = path.stat()
    except FileNotFoundError:
        raise TransportError(f"ring {handle.path} is gone") from None
    if info.st_uid != os.getuid() or info.st_size != size:
        raise RefusedMessage(f"ring {handle.path} has {info.st_size} bytes; its handle says {size}")
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)


def _map_cuda(handle: RingHandle, device: torch.device) -> Tensor:
    _, *rest = handle.cuda
    try:
        storage = torch.UntypedStorage._new_shared_cuda(device.index or 0, *rest)
    except (RuntimeError, TypeError) as error:
        raise TransportError(f"CUDA IPC import failed: {error}") from None
    size = handle.num_slots * slot_bytes(handle.shape, handle.dtype)
    if storage.nbytes() < size:
        raise RefusedMessage(f"ring has {storage.nbytes()} bytes; its handle says {size}")
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)[:size]


def write_pattern(slot: Tensor, seed: int) -> int:
    """Fill the head of a slot with a pattern and return its checksum: what the connect-time proof compares."""
    flat = slot.view(-1).view(torch.uint8)[:PROOF_BYTES]
    generator = torch.Generator().manual_seed(seed)
    pattern = torch.randint(0, 256, (flat.numel(),), dtype=torch.uint8, generator=generator)
    flat.copy_(pattern)
    return zlib.crc32(pattern.numpy().tobytes())


def read_checksum(slot: Tensor) -> int:
    """Checksum of the head of a slot."""
    flat = slot.view(-1).view(torch.uint8)[:PROOF_BYTES]
    return zlib.crc32(flat.cpu().numpy().tobytes())
