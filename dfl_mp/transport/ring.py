"""Rings of fixed slots for tensors: a target owns one, drafters map it. Knows nothing of training.

Two kinds behind one face. `shm`: anonymous shared memory (memfd) on any machine, which vanishes with its last user
whatever kills that. `cuda`: one device allocation, exported once by CUDA IPC. A slot is filled and copied as a whole;
who may do so when is the protocol's business, not the ring's. Every copy is waited for on the host, on both sides.
Behind the last slot lies a pattern: a reader checks it before it trusts the mapping.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from contextlib import suppress
from functools import cache
from typing import Any

import psutil
import torch
from torch import Tensor

from dfl_mp.errors import RefusedMessage, TransportError
from dfl_mp.log import say
from dfl_mp.messages import RingHandle

PREFIX = "dfl-mp-"
OTHERS_FILE = re.compile(r"/proc/\d+/fd/\d+")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
PROOF_BYTES = 1 << 20
PATTERN_SEED = 20602036


def slot_bytes(shape: tuple[int, int, int], dtype: str) -> int:
    """Bytes of one slot of `shape` [rows, tokens, F·H]."""
    rows, tokens, width = shape
    return rows * tokens * width * DTYPES[dtype].itemsize


def ring_bytes(num_slots: int, shape: tuple[int, int, int], dtype: str) -> int:
    """Bytes of a whole ring with its pattern."""
    return num_slots * slot_bytes(shape, dtype) + PROOF_BYTES


class RingOwner:
    """The target's end. `handle` tells others how to map it."""

    def __init__(self, storage: Tensor, how: dict[str, Any], num_slots: int, shape: tuple[int, int, int], dtype: str):
        generator = torch.Generator().manual_seed(PATTERN_SEED)
        pattern = torch.randint(0, 256, (PROOF_BYTES,), dtype=torch.uint8, generator=generator)
        storage[-PROOF_BYTES:].copy_(pattern)
        checksum = zlib.crc32(pattern.numpy().tobytes())
        fields = {"num_slots": num_slots, "shape": shape, "dtype": dtype, "checksum": checksum}
        self.handle = RingHandle.model_validate({**how, **fields})
        self._slots = _views(storage, self.handle)
        self._fd: int | None = None
        self._pinned = _pin(storage)

    @staticmethod
    def on_shm(name: str, num_slots: int, shape: tuple[int, int, int], dtype: str) -> RingOwner:
        """Allocate shared memory; others reach it through this process's open file.

        Raises TransportError naming the bytes wanted and free when it does not fit.
        """
        size, free = ring_bytes(num_slots, shape, dtype), psutil.virtual_memory().available
        if size > free:
            raise TransportError(f"{free >> 20} MiB of memory are free; a ring of {size >> 20} MiB does not fit")
        fd = os.memfd_create(f"{PREFIX}{name}", os.MFD_CLOEXEC)
        os.posix_fallocate(fd, 0, size)
        owner = RingOwner(_open_shm(fd, size), {"kind": "shm", "path": _path(fd)}, num_slots, shape, dtype)
        owner._fd = fd
        return owner

    @staticmethod
    def on_cuda(device: torch.device, num_slots: int, shape: tuple[int, int, int], dtype: str) -> RingOwner:
        """Allocate on the device and export by CUDA IPC. The allocator must not use expandable segments.

        Raises TransportError where the driver does not offer CUDA IPC.
        """
        storage = torch.empty(ring_bytes(num_slots, shape, dtype), dtype=torch.uint8, device=device)
        try:
            exported = storage.untyped_storage()._share_cuda_()
        except RuntimeError as error:
            raise TransportError(f"CUDA IPC export failed: {_first_line(error)}") from None
        return RingOwner(storage, {"kind": "cuda", "cuda": tuple(exported)}, num_slots, shape, dtype)

    def slot(self, index: int) -> Tensor:
        """The slot as a tensor [rows, tokens, F·H]."""
        return self._slots[index]

    def close(self) -> None:
        """Drop the memory; nobody can map it any more, mappings of others stay readable."""
        self._slots, self._pinned = [], _unpin(self._pinned)
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class RingView:
    """A drafter's mapping of one target's ring."""

    def __init__(self, handle: RingHandle, device: torch.device) -> None:
        """Map the ring and check its pattern.

        Raises RefusedMessage when the handle is not sane, TransportError when the ring cannot be mapped or is another.
        """
        self.handle = handle
        storage = _map_shm(handle) if handle.kind == "shm" else _map_cuda(handle, device)
        self._pinned = _pin(storage)
        found = zlib.crc32(storage[-PROOF_BYTES:].to(device).cpu().numpy().tobytes())
        if found != handle.checksum:
            self.close()
            raise TransportError(f"the ring's pattern has checksum {found}; its handle says {handle.checksum}")
        self._slots = _views(storage, handle)

    def slot(self, index: int) -> Tensor:
        """The slot as a tensor [rows, tokens, F·H].

        Raises RefusedMessage for an index out of the ring's bounds.
        """
        if not 0 <= index < len(self._slots):
            raise RefusedMessage(f"slot {index} of a ring of {len(self._slots)}")
        return self._slots[index]

    def rate(self, buffer: Tensor) -> float:
        """Bytes per second of one copy of a slot into `buffer`, after one to warm up."""
        for _ in range(2):
            began = time.perf_counter()
            buffer.copy_(self._slots[0])
            if buffer.is_cuda:
                torch.cuda.current_stream(buffer.device).synchronize()
        return buffer.nbytes / max(1e-9, time.perf_counter() - began)

    def close(self) -> None:
        """Drop the mapping."""
        self._slots, self._pinned = [], _unpin(self._pinned)


def _views(storage: Tensor, handle: RingHandle) -> list[Tensor]:
    size = slot_bytes(handle.shape, handle.dtype)
    typed = [storage[i * size : (i + 1) * size].view(DTYPES[handle.dtype]) for i in range(handle.num_slots)]
    return [t.view(handle.shape) for t in typed]


def _path(fd: int) -> str:
    """How another process of this user opens this process's file."""
    return f"/proc/{os.getpid()}/fd/{fd}"


def _open_shm(fd: int, size: int) -> Tensor:
    return torch.from_file(_path(fd), shared=True, size=size, dtype=torch.uint8)


def _pin(storage: Tensor) -> Tensor | None:
    """Pin the pages of host memory where there is a GPU, so that copies run at the bus's rate; what `_unpin` takes."""
    if storage.is_cuda or not torch.cuda.is_available():
        return None
    code = int(torch.cuda.cudart().cudaHostRegister(storage.data_ptr(), storage.nbytes, 0))
    return storage if _succeeded(code, "pinned, copies are slower") else None


def _unpin(storage: Tensor | None) -> None:
    """Before the memory is unmapped: the pages would stay pinned, and be taken for what is mapped there next."""
    if storage is not None:
        _succeeded(int(torch.cuda.cudart().cudaHostUnregister(storage.data_ptr())), "unpinned")


def _succeeded(code: int, what: str) -> bool:
    """Whether CUDA did it; if not, says so once and takes back the error, which the next kernel launch would raise."""
    if code != 0:
        _say_once(f"CUDA error {code}: shared memory cannot be {what}")
        with suppress(RuntimeError):
            torch.ones(1, device="cuda")
    return code == 0


@cache
def _say_once(text: str) -> None:
    say(text)


def _map_shm(handle: RingHandle) -> Tensor:
    if not OTHERS_FILE.fullmatch(handle.path):
        raise RefusedMessage(f"ring path {handle.path!r} is not one of ours")
    size = ring_bytes(handle.num_slots, handle.shape, handle.dtype)
    try:
        fd = os.open(handle.path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise TransportError(f"ring {handle.path} is gone: {error.strerror}") from None
    try:
        found, info = os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd)
        if not found.startswith(f"/memfd:{PREFIX}") or info.st_size != size:
            raise RefusedMessage(f"ring {handle.path} is {found} of {info.st_size} bytes; its handle says {size}")
        return _open_shm(fd, size)
    finally:
        os.close(fd)


def _map_cuda(handle: RingHandle, device: torch.device) -> Tensor:
    _, *rest = handle.cuda
    size = ring_bytes(handle.num_slots, handle.shape, handle.dtype)
    torch.cuda.init()
    try:
        storage = torch.UntypedStorage._new_shared_cuda(device.index or 0, *rest)
    except (RuntimeError, TypeError) as error:
        raise TransportError(f"CUDA IPC import failed: {_first_line(error)}") from None
    if storage.nbytes() < size:
        raise RefusedMessage(f"the ring has {storage.nbytes()} bytes; its handle says {size}")
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)[:size]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
