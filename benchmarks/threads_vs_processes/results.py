"""The result file: runs of cells by size and GPUs, with machine and versions; written again after every cell."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "results"


def gpu_names() -> list[str]:
    """As `nvidia-smi` lists them; empty without one. Asking torch would open a CUDA context here."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in out.splitlines() if line.strip()]


def command(arguments: Sequence[str]) -> str:
    """As it was given, without the place of the file.

    >>> command(["--gpus", "2", "--out", "/tmp/x.json", "--short", "9"])
    'python -m benchmarks.threads_vs_processes --gpus 2 --short 9'
    """
    places = [i for i, argument in enumerate(arguments) if argument == "--out"]
    kept = [argument for i, argument in enumerate(arguments) if i not in places and i - 1 not in places]
    return " ".join(["python -m benchmarks.threads_vs_processes", *kept])


@dataclass
class ResultFile:
    path: Path
    content: dict[str, Any]
    run: dict[str, Any]

    @classmethod
    def open(cls, args: argparse.Namespace, flags: dict[str, bool | None], torch_version: str) -> ResultFile:
        """A new file, or a further run in one that exists."""
        names = gpu_names() if args.device == "cuda" else []
        device = names[0].split()[-1].lower() if names else "cpu"
        today = datetime.date.today().isoformat()
        path = args.out or FOLDER / f"threads_vs_processes-{device}-{today}.json"
        content = json.loads(path.read_text()) if path.exists() else {"date": today, "runs": [], "processes": {}}
        run = {
            "what": command(sys.argv[1:]),
            "size": args.size,
            "gpus": args.gpus if names else 0,
            "device": names[0] if names else f"{os.cpu_count()} CPU cores",
            "backend": args.backend,
            "torch": torch_version,
            "python": platform.python_version(),
            "per_process": flags,
            "cells": [],
        }
        content["runs"].append(run)
        return cls(path, content, run)

    def add(self, cell: dict[str, Any]) -> None:
        self.run["cells"].append(cell)
        processes = [c for run in self.content["runs"] for c in run["cells"] if c["how"] == "processes"]
        self.content["processes"] = {
            "steps": sum(c["steps"] for c in processes),
            "failed_steps": sum(c["failed_steps"] for c in processes),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.content, indent=1) + "\n")
        new.replace(self.path)
