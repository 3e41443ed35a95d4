"""A benchmark's result as JSON with what it was measured on, written anew after each finding."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from dfl_mp.log import write_json

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "triton", "specforge")


def device_name() -> str:
    """`h200`, or `cpu`: what a result file is named after."""
    return torch.cuda.get_device_name().split()[-1].lower() if torch.cuda.is_available() else "cpu"


class ResultFile:
    """`benchmarks/results/<name>-<device>-<date>.json` unless `path` is given."""

    def __init__(self, name: str, path: Path | None = None) -> None:
        today = datetime.date.today().isoformat()
        self.path = path or FOLDER / f"{name}-{device_name()}-{today}.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.found: dict[str, Any] = {
            "benchmark": name,
            "command": " ".join(["python", "-m", f"benchmarks.{name}", *sys.argv[1:]]),
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


def machine() -> dict[str, Any]:
    """GPUs, cores and versions."""
    found: dict[str, Any] = {"cores": os.cpu_count(), "python": platform.python_version()}
    if torch.cuda.is_available():
        found |= {"gpus": torch.cuda.device_count(), "gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
