"""What the user's paths stand for, and those that stand for nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dfl_mp.errors import ConfigError
from dfl_mp.inputs import find_target
from launcher import train


def test_folders_and_hub_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "models" / "mine" / "config.json").write_text("{}")
    assert find_target("models/mine") == "models/mine"
    assert find_target("~/models/mine") == str(tmp_path / "models" / "mine")
    assert find_target("somebody/model-7B") == "somebody/model-7B"
    assert (Path(find_target("builtin:quickstart")) / "config.json").is_file()
    assert find_target(find_target("builtin:quickstart")) == find_target("builtin:quickstart")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/no/model", "no folder /no/model"),
        ("./models", "no folder ./models"),
        ("~/models/mine", "no folder ~/models/mine"),
        ("models/org/mine", "no folder models/org/mine"),
        ("mine", "no folder mine"),
        ("builtin:other", "only builtin:quickstart"),
        ("file.bin", "is a file"),
        ("empty", "has no config.json"),
    ],
)
def test_a_target_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file.bin").touch(), (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=rf"^target\.path: .*{says}"):
        find_target(path)


def test_it_is_told_before_a_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", sys.stdout), monkeypatch.setattr(sys, "stderr", sys.stderr)
    with pytest.raises(ConfigError, match=r"^target\.path: no folder ./my-model"):
        train.main(["target.path=./my-model"])
    assert list(tmp_path.iterdir()) == []
