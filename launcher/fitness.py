"""Before any process starts: can the planned GPUs, or the CPU, do what the config asks for by name?"""

from __future__ import annotations

from dfl_mp import needs
from dfl_mp.config import Config
from dfl_mp.needs import Device
from launcher.plan import Placement, Plan


def check(plan: Plan, config: Config) -> None:
    """`config` with its dtypes decided. Raises ConfigError, as the worker would: what only a worker can know (the
    target's head_dim, whether a library loads) is left to it."""
    drafter, target = config.drafter, config.target
    for place in plan.drafters:
        device = _device(place)
        if drafter.attention == "flash":
            needs.require_attention("flash", needs.flash_reason(device, drafter.dtype, drafter.head_dim))
        if drafter.attention == "flex":
            needs.require_attention("flex", needs.flex_reason(device, drafter.dtype))
        if drafter.float8:
            needs.require_float8("drafter.float8", device, drafter.dtype)
    for place in plan.targets:
        if target.float8:
            needs.require_float8("target.float8", _device(place), target.dtype)


def _device(place: Placement) -> Device:
    return needs.CPU if place.gpu is None else place.gpu.device
