"""From Hydra overrides to the one typed config: Hydra composes the YAML of `conf/`, `dfl_mp.config.parse` checks it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dfl_mp.config import Config, parse
from dfl_mp.errors import ConfigError

REPO = Path(__file__).resolve().parent.parent
CONF = REPO / "conf"
QUOTED = "FIELD=\"'...'\""


def compose_tree(overrides: Sequence[str]) -> Any:
    """The composed OmegaConf tree; missing values (`???`) may still be in it.

    Raises ConfigError with Hydra's reason in one line.
    """
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
            return compose("config", overrides=list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_one_line(error)) from None


def load(overrides: Sequence[str]) -> Config:
    """The config of a run.

    Raises ConfigError: a wrong override, a value that has to be given, a field that the typed tree refuses.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    tree = compose_tree(overrides)
    try:
        missing = sorted(OmegaConf.missing_keys(tree))
        plain = {} if missing else OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_one_line(error)) from None
    if missing:
        raise ConfigError("; ".join(f"{field}: has to be given, as {field}=..." for field in missing))
    assert isinstance(plain, dict)
    return parse({str(key): value for key, value in plain.items()})


def read_overrides(overrides: Sequence[str]) -> list[tuple[str, Any]]:
    """(field, value) of overrides without groups. Raises ConfigError."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        read = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError(_one_line(error)) from None
    for override in read:
        if override.is_delete() or override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: one value is needed, as FIELD=VALUE")
    return [(override.key_or_group, override.value()) for override in read]


def to_yaml(overrides: Sequence[str]) -> str:
    """The composed tree as YAML."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(compose_tree(overrides))


def experiments() -> dict[str, str]:
    """Name of each experiment -> the first line of its comment."""
    found = {}
    for path in sorted((CONF / "experiment").glob("*.yaml")):
        comments = (line[1:].strip() for line in path.read_text().splitlines() if line.startswith("#"))
        found[path.stem] = next((text for text in comments if not text.startswith("@package")), "")
    return found


def groups() -> dict[str, list[str]]:
    """Config groups and their choices, without the experiments."""
    folders = (path for path in sorted(CONF.iterdir()) if path.is_dir() and path.name != "experiment")
    return {folder.name: sorted(file.stem for file in folder.glob("*.yaml")) for folder in folders}


def _one_line(error: Exception) -> str:
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    unparsed = getattr(error, "override", None)
    if unparsed is not None:
        return f"{unparsed}: cannot be read as FIELD=VALUE; a value with special characters goes in quotes, {QUOTED}"
    if found := re.match(r"Could not override '(.+?)'\.", text):
        return f"{found[1]}: unknown field"
    if found := re.match(r"Ambiguous value for argument '(.+?)' 1\. ", text):
        return f"{found[1]}: a list is FIELD=[a,b], a text with a comma goes in quotes, {QUOTED}"
    return text.split(" Config search path:")[0].split(" full_key:")[0].split(" See https://hydra.cc")[0]
