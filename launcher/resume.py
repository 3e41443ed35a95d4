"""`python -m launcher resume RUN [override ...]`: go on with a run from its own resolved config."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dfl_mp.config import Config, parse
from dfl_mp.errors import ConfigError
from launcher import attach, compose, status, train
from launcher.tail import short


def main(words: Sequence[str]) -> int:
    """0 done (also when the run was finished before), 1 failed or stopped.

    Raises ConfigError: no such run, a wrong override, or one that changes the mathematics (named by its field).
    """
    named = [word for word in words[:1] if "=" not in word]
    run_dir = attach.find(named)
    overrides = list(words[len(named) :])
    if not attach.running(run_dir) and status.over(run_dir)["reason"] == "done":
        if overrides:
            raise ConfigError(f"RUN: {short(run_dir)} is finished; {overrides[0]} would change nothing")
        print(train.FINISHED.format(short(run_dir)))
        return 0
    config = reload(run_dir, overrides)
    return train.main(overrides, load=lambda _: config)


def reload(run_dir: Path, overrides: Sequence[str]) -> Config:
    """The run's `config.json` with overrides on top. Raises ConfigError."""
    try:
        tree = json.loads((run_dir / "config.json").read_text())
    except (OSError, ValueError):
        raise ConfigError(f"RUN: {run_dir / 'config.json'} cannot be read") from None
    for field, value in compose.read_overrides(overrides):
        _put(tree, field, value)
    tree["run"]["dir"] = str(run_dir)
    return parse(tree)


def _put(tree: dict[str, Any], field: str, value: Any) -> None:
    *parents, last = field.split(".")
    for parent in parents:
        inner = tree.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{field}: unknown field")
        tree = inner
    tree[last] = value
