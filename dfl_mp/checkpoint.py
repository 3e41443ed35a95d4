"""Checkpoints: a folder that exists whole or not at all. safetensors and JSON, no pickle.

    step_00000120/  drafter.safetensors    weights by name, in the master dtype
                    optimizer.safetensors  flat masters, moments, counters
                    manifest.json          written last: sizes of the others, the step, the layout

A drafter writes into a private folder; the coordinator makes it visible by one rename (rule 21 of the protocol). It
counts if the ledger has as many lines (rule 20): one beyond, after the disk lost lines, is ignored and deleted.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dfl_mp.errors import CheckpointError
from dfl_mp.log import fsync_path, write_json

FORMAT = 1
DRAFTER = "drafter.safetensors"
OPTIMIZER = "optimizer.safetensors"
MANIFEST = "manifest.json"


def name_of(steps: int) -> str:
    """`step_00000120`"""
    return f"step_{steps:08d}"


def write(
    folder: Path, steps: int, weights: dict[str, torch.Tensor], state: dict[str, torch.Tensor], meta: Any
) -> None:
    """Write a checkpoint of `steps` steps into a private folder, on disk before this returns."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    for name, tensors in ((DRAFTER, weights), (OPTIMIZER, state)):
        save_file({k: v.detach().to("cpu", copy=True).contiguous() for k, v in tensors.items()}, folder / name)
        fsync_path(folder / name)
    sizes = {name: (folder / name).stat().st_size for name in (DRAFTER, OPTIMIZER)}
    write_json(folder / MANIFEST, {"format": FORMAT, "steps": steps, "sizes": sizes, "meta": meta})
    fsync_path(folder)


def read(folder: Path) -> tuple[int, dict[str, torch.Tensor], Any]:
    """(steps, optimizer state, meta) of a checkpoint.

    Raises CheckpointError naming the file and field that is torn or foreign.
    """
    manifest = read_manifest(folder)
    try:
        state = load_file(folder / OPTIMIZER)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder / OPTIMIZER}: {error}") from None
    return manifest["steps"], state, manifest["meta"]


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, after its files were found to have the sizes that it says."""
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"{path}: format {manifest['format']}; this version reads {FORMAT}")
        sizes, _ = dict(manifest["sizes"]), manifest["meta"]
        if not isinstance(manifest["steps"], int):
            raise CheckpointError(f"{path}: steps is not a number")
        if folder.name.startswith("step_") and folder.name != name_of(manifest["steps"]):
            raise CheckpointError(f"{path}: steps is {manifest['steps']} in the folder {folder.name}")
        if missing := {DRAFTER, OPTIMIZER} - sizes.keys():
            raise CheckpointError(f"{path}: sizes lacks {', '.join(sorted(missing))}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: {type(error).__name__}: {error}") from None
    for name, size in sizes.items():
        found = (folder / name).stat().st_size if (folder / name).exists() else None
        if found != size:
            raise CheckpointError(f"{folder / name}: {found} bytes; the manifest says {size}")
    return manifest
