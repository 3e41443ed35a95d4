"""A benchmark's result as JSON with what it was measured on, written anew after each finding."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dfl_mp.log import write_json

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "triton", "specforge", "torchao")


@cache
def gpus() -> tuple[dict[str, str], ...]:
    """`name` and `driver` of each GPU that CUDA_VISIBLE_DEVICES leaves; nvidia-smi is asked, so that no CUDA context is
    made here. On a machine with different GPUs the names are those of the first ones."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1"):
        return ()
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    rows = [line.split(", ") for line in answer.stdout.splitlines() if answer.returncode == 0]
    return tuple({"name": row[0], "driver": row[-1]} for row in rows[: len(visible.split(",")) if visible else None])


def device_name() -> str:
    """`h200`, or `cpu`: what a result file is named after."""
    return gpus()[0]["name"].split()[-1].lower() if gpus() else "cpu"


class ResultFile:
    """`benchmarks/results/<name>-<device>-<date>.json` unless `path` is given; `keep` adds to what the file holds."""

    def __init__(self, name: str, path: Path | None = None, keep: bool = False) -> None:
        today = datetime.date.today().isoformat()
        self.path = path or FOLDER / f"{name}-{device_name()}-{today}.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.found: dict[str, Any] = json.loads(self.path.read_text()) if keep and self.path.exists() else {}
        command = " ".join(["python", "-m", f"benchmarks.{name}", *sys.argv[1:]])
        before = self.found.get("command")
        self.found |= {
            "benchmark": name,
            "command": command if before in (None, command) else f"{before}; {command}",
            "date": today,
            "machine": machine(),
        }

    def add(self, key: str, value: Any) -> None:
        self.found[key] = value
        self._write()

    def append(self, key: str, value: Any) -> None:
        self.found.setdefault(key, []).append(value)
        self._write()

    def _write(self) -> None:
        write_json(self.path, self.found)


def newest(name: str, device: str | None = None, folder: Path = FOLDER) -> dict[str, Any] | None:
    """The result file of that name with the latest date, of one device or of any but the CPU."""
    files = [p for p in folder.glob(f"{name}-*.json") if _device_of(p, name) is not None]
    if device is not None:
        files = [p for p in files if _device_of(p, name) == device]
    elif any(_device_of(p, name) != "cpu" for p in files):
        files = [p for p in files if _device_of(p, name) != "cpu"]
    if not files:
        return None
    found = json.loads(max(files, key=lambda p: p.stem[-10:]).read_text())
    assert isinstance(found, dict)
    return found


def _device_of(path: Path, name: str) -> str | None:
    """`h200` of `step-h200-2026-12-01.json`; None for a file of another benchmark."""
    device, dash, date = path.stem.removeprefix(f"{name}-").partition("-")
    return device if dash and len(date) == 10 and date[4] == "-" else None


def require_cuda(name: str) -> None:
    """Ends the process with a line where there is no CUDA device."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit(f"benchmarks.{name}: needs a CUDA device, there is none")


def machine() -> dict[str, Any]:
    """GPUs, cores and versions."""
    found: dict[str, Any] = {"cores": os.cpu_count(), "python": platform.python_version()}
    if gpus():
        found |= {"gpus": len(gpus()), "gpu": gpus()[0]["name"], "driver": gpus()[0]["driver"]}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
