"""A torn or foreign checkpoint is refused by file and field."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dfl_mp import checkpoint
from dfl_mp.errors import CheckpointError

torch.set_num_threads(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "step_00000007"
    checkpoint.write(made, 7, {"w": torch.ones(4)}, {"master": torch.arange(8.0)}, {"layout": ["w"]})
    return made


def manifest(**changed: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = json.loads((folder / checkpoint.MANIFEST).read_text())
        content |= {k: v for k, v in changed.items() if v is not None}
        for name in [k for k, v in changed.items() if v is None]:
            del content[name]
        (folder / checkpoint.MANIFEST).write_text(json.dumps(content))

    return change


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-5])


def foreign(folder: Path) -> None:
    """A pickle of the same size: it must not be loaded."""
    file = folder / checkpoint.OPTIMIZER
    size = file.stat().st_size
    file.write_bytes(pickle.dumps({"master": 1}).ljust(size, b"\0"))


def test_what_was_written_is_read(folder: Path) -> None:
    steps, state, meta = checkpoint.read(folder)
    assert (steps, meta) == (7, {"layout": ["w"]})
    assert torch.equal(state["master"], torch.arange(8.0))


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        (cut(checkpoint.OPTIMIZER), r"optimizer\.safetensors: \d+ bytes; the manifest says"),
        (cut(checkpoint.DRAFTER), r"drafter\.safetensors: \d+ bytes; the manifest says"),
        (cut(checkpoint.MANIFEST), r"manifest\.json: JSONDecodeError"),
        (lambda folder: (folder / checkpoint.MANIFEST).unlink(), r"manifest\.json: FileNotFoundError"),
        (lambda folder: (folder / checkpoint.DRAFTER).unlink(), r"drafter\.safetensors: None bytes"),
        (foreign, r"optimizer\.safetensors: .*"),
        (manifest(format=2), r"manifest\.json: format 2"),
        (manifest(steps="7"), r"manifest\.json: steps is not a number"),
        (manifest(steps=8), r"manifest\.json: steps is 8 in the folder step_00000007"),
        (manifest(sizes={}), r"manifest\.json: sizes lacks drafter\.safetensors, optimizer\.safetensors"),
        (manifest(sizes=3), r"manifest\.json: TypeError"),
        (manifest(meta=None), r"manifest\.json: KeyError: 'meta'"),
    ],
)
def test_torn_or_foreign_is_refused_by_file_and_field(folder: Path, damage: Callable[[Path], None], names: str) -> None:
    damage(folder)
    with pytest.raises(CheckpointError, match=names):
        checkpoint.read(folder)
