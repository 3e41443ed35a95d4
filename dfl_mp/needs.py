"""What some fields need of a GPU. The launcher asks before any process starts, by what nvidia-smi says; each worker
asks again, of its own device. A leaf: no torch until a worker describes its device."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dfl_mp.errors import ConfigError

if TYPE_CHECKING:
    import torch

FLASH_HEAD_DIMS = (64, 128)
"""Those that were tried."""
WITHOUT_FLASH_ATTN = "it needs flash-attn-4: pip install 'dfl-mp[flash]'"


@dataclass(frozen=True)
class Device:
    """A GPU or the CPU. What is not known of a GPU (its model, its compute capability) is held against nothing."""

    is_gpu: bool
    model: str = ""
    capability: tuple[int, int] | None = None


CPU = Device(is_gpu=False)
UNKNOWN_GPU = Device(is_gpu=True)


def describe(device: torch.device) -> Device:
    """What torch says of it."""
    import torch

    if device.type != "cuda" or not torch.cuda.is_available():
        return Device(device.type == "cuda")
    return Device(True, torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))


def flash_reason(device: Device, dtype: str, head_dim: int | None) -> str | None:
    """Why FlashAttention-4 cannot be used in `dtype` and `head_dim` (None: not known yet), or None."""
    if not device.is_gpu or (device.capability is not None and device.capability[0] != 9):
        return "it needs a Hopper GPU"
    if dtype != "bfloat16":
        return f"it needs bfloat16, not {dtype}"
    if head_dim is not None and head_dim not in FLASH_HEAD_DIMS:
        return f"it needs a head_dim of {' or '.join(map(str, FLASH_HEAD_DIMS))}, not {head_dim}"
    return WITHOUT_FLASH_ATTN if importlib.util.find_spec("flash_attn") is None else None


def flex_reason(device: Device, dtype: str) -> str | None:
    """Why compiled flex_attention cannot be used, or None."""
    if not device.is_gpu:
        return "it needs a GPU"
    return None if dtype != "float64" else "it needs a dtype below float64"


def require_attention(attention: str, reason: str | None) -> None:
    """Raises ConfigError where there is a reason against the `attention` that was asked for."""
    if reason is not None:
        raise ConfigError(f"drafter.attention: {attention} cannot be used here: {reason}")


def require_float8(field: str, device: Device, dtype: str) -> None:
    """Raises ConfigError naming the config field (`target.float8`) where it cannot be used."""
    if not device.is_gpu:
        raise ConfigError(f"{field}: needs a GPU of compute capability 8.9 or newer; there is none")
    if device.capability is not None and device.capability < (8, 9):
        has = ".".join(map(str, device.capability))
        raise ConfigError(f"{field}: needs compute capability 8.9; {device.model or 'the GPU'} has {has}")
    if dtype != "bfloat16":
        raise ConfigError(f"{field}: needs {field.split('.')[0]}.dtype=bfloat16")
