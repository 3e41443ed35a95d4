"""What this machine offers: cores, and the GPUs that the user lets us see. No torch: nvidia-smi is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

from dfl_mp.needs import UNKNOWN_GPU, Device

ASK_WITHIN_S = 30.0
OCCUPIED_MIB = 1024
LEAVES_WITHIN_S = 5.0
LOOK_EVERY_S = 0.5
NAMELESS = ("[No data]", "[Not Found]")
"""What nvidia-smi calls a process that is gone, and one in another container, which stays."""
MEMORY = "index,uuid,memory.used,memory.free,memory.total"
"""What every nvidia-smi knows; `compute_cap` is younger, and one field that it does not know fails the query."""


@dataclass(frozen=True)
class Gpu:
    """`name` is what CUDA_VISIBLE_DEVICES takes (an index in bus order, or the UUID that the user gave)."""

    name: str
    free_mib: int
    total_mib: int
    busy_by: str = ""
    """Who holds more than a GiB of it; empty when it is free."""
    device: Device = UNKNOWN_GPU


@dataclass(frozen=True)
class Machine:
    num_cores: int
    gpus: tuple[Gpu, ...] = ()

    @property
    def free_gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.gpus if not gpu.busy_by)


def look(environment: Mapping[str, str] = os.environ) -> Machine:
    """The machine as this process may use it."""
    cores = len(os.sched_getaffinity(0))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return Machine(cores)
    until = time.monotonic() + LEAVES_WITHIN_S
    while True:
        devices = _ask(f"--query-gpu={MEMORY},compute_cap,name") or _ask(f"--query-gpu={MEMORY}")
        processes = _ask("--query-compute-apps=gpu_uuid,pid,process_name") if devices else []
        gpus = read_gpus(devices, processes, visible)
        if time.monotonic() > until or not any(_is_leaving(gpu) for gpu in gpus):
            return Machine(cores, gpus)
        time.sleep(LOOK_EVERY_S)


def _is_leaving(gpu: Gpu) -> bool:
    """Held by a process that has no name any more: the driver takes a second to clear up after a killed one."""
    return any(f"({nameless})" in gpu.busy_by for nameless in NAMELESS)


def read_gpus(devices: list[list[str]], processes: list[list[str]], visible: str | None) -> tuple[Gpu, ...]:
    """GPUs from rows of nvidia-smi (index, uuid, used, free, total in MiB, and compute capability and name where it
    knows them; uuid, pid, name), in the user's order.

    `visible` is CUDA_VISIBLE_DEVICES: indices, UUIDs or beginnings of UUIDs; as in CUDA, an unknown entry ends it.
    """
    gpus: dict[str, Gpu] = {}
    for index, uuid, used, free, total, *kind in devices:
        holders = [f"process {pid} ({name})" for owner, pid, name in processes if owner == uuid]
        busy = (", ".join(holders) or f"{used} MiB in use") if int(used) > OCCUPIED_MIB else ""
        gpus[uuid] = Gpu(index, int(free), int(total), busy, _device(kind))
    if visible is None:
        return tuple(gpus.values())
    chosen = []
    for entry in (part.strip() for part in visible.split(",")):
        match = [
            u for u, gpu in gpus.items() if gpu.name == entry or (entry.startswith("GPU-") and u.startswith(entry))
        ]
        if len(match) != 1:
            break
        chosen.append(gpus[match[0]])
    return tuple(chosen)


def _device(kind: list[str]) -> Device:
    """Of compute capability and name; of nothing, where nvidia-smi did not know these fields."""
    major, _, minor = kind[0].partition(".") if kind else ("", "", "")
    known = major.isdecimal() and minor.isdecimal()
    return Device(True, ", ".join(kind[1:]), (int(major), int(minor)) if known else None)


def _ask(query: str) -> list[list[str]]:
    """Rows of one nvidia-smi query; none where there is no such tool or no driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ASK_WITHIN_S)
    except subprocess.TimeoutExpired:
        return []
    if answer.returncode != 0:
        return []
    return [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines() if line.strip()]
