"""Every experiment composes and parses; what the user gets wrong is one line that names the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from dfl_mp.errors import ConfigError
from launcher import __main__ as cli
from launcher import compose

DATA = "data.path=chats.jsonl"
REQUIRED = {"smollm2": [DATA], "qwen3_8b": [DATA], "own": [DATA, "target.path=my/model"]}


@pytest.mark.parametrize("name", compose.experiments())
def test_experiment_parses(name: str) -> None:
    config = compose.load([f"experiment={name}", *REQUIRED.get(name, [])])
    assert config.run.name == name
    assert config.checkpoint.every_steps > 0, "a machine that goes down loses the whole run"


def test_every_group_choice_composes() -> None:
    for group, choices in compose.groups().items():
        for choice in choices:
            compose.compose_tree([f"{group}={choice}"])


def test_every_experiment_has_a_line_in_the_help() -> None:
    assert all(compose.experiments().values())


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("data=conversations", "data.path"),
        ("optim.lr=-1", "optim.lr"),
        ("optim.lr=fast", "optim.lr"),
        ("optim.lr=inf", "optim.lr: Input should be a finite number"),
        ("drafter.block_size=999999", "drafter.block_size: 999999 is longer than a row of"),
        ("optim.lrr=1", "optim.lrr: unknown field"),
        ("experiment=nope", "experiment/nope"),
        ("run.name=a/b", "run.name"),
        ("data.path=", "data.path"),
        ("drafter.block_size=1", "drafter.block_size"),
        ("target.dtype=float16", "target.dtype"),
        ("eval.every_steps=5", "eval.every_steps: only 0 is supported so far: the evaluation runs at the end (got 5)"),
        ("eval.every_steps=-1", "eval.every_steps: Input should be greater than or equal to 0"),
        ("data.cache_dir='${oc.env:DFL_TEST_UNSET}'", "DFL_TEST_UNSET"),
        ("+optim.lrr=1", "optim.lrr: unknown field"),
        ("optim.lr=[", "optim.lr=[: cannot be read"),
        ("data.path=é.jsonl", "data.path=é.jsonl: cannot be read"),
        ("data.path=a,b", "data.path=a,b: a list is"),
        ("=", "="),
    ],
)
def test_wrong_override_is_one_line(override: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError) as error:
        compose.load([override])
    assert named in str(error.value) and "\n" not in str(error.value)
    assert cli.run(["train", override]) == 2
    assert capsys.readouterr().err == f"error: {error.value}\n"


@pytest.mark.parametrize("field", ["data.path", "data.prompts"])
def test_a_missing_file_is_told_before_a_folder_is_made(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["train", f"{field}=chats.jsonl"]) == 2
    assert capsys.readouterr().err == f"error: {field}: no such file: chats.jsonl\n"
    assert not list(tmp_path.iterdir())


def test_a_quoted_value_may_hold_anything() -> None:
    assert compose.load(["data.path='my é, [1].jsonl'"]).data.path == "my é, [1].jsonl"


@pytest.mark.parametrize("arguments", [[], ["nope"], ["train", "--nope"], ["train", "--cfg", "hydra"]])
def test_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 2
    assert capsys.readouterr().err


def test_help_and_cfg(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("quickstart", "qwen3_8b", "train.max_steps=", "cluster"))
    assert cli.run(["train", "--cfg", "job", "experiment=qwen3_8b", "optim.lr=0.5"]) == 0
    assert "lr: 0.5" in capsys.readouterr().out
