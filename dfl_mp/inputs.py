"""Where the files behind the user's settings lie. A leaf: no torch."""

from __future__ import annotations

from pathlib import Path

from dfl_mp.errors import ConfigError

QUICKSTART = "builtin:quickstart"
_QUICKSTART_DIR = Path(__file__).parent / "quickstart"


def find_file(path: str, field: str, builtin: str) -> Path:
    """The file behind a setting; `builtin:quickstart` is `builtin` (or its .gz) in the package.

    Raises ConfigError naming `field` when there is no such file.
    """
    if path == QUICKSTART:
        plain = _QUICKSTART_DIR / builtin
        found = plain if plain.is_file() else plain.with_name(builtin + ".gz")
    elif path.startswith("builtin:"):
        raise ConfigError(f"{field}: there is no {path}, only {QUICKSTART}")
    else:
        found = Path(path).expanduser()
    if found.is_dir():
        raise ConfigError(f"{field}: {path} is a folder, not a JSONL file")
    if not found.is_file():
        raise ConfigError(f"{field}: no such file: {path}")
    return found


def find_target(path: str) -> str:
    """The folder behind `target.path`; a hub name (`name/model`) is handed back as it is.

    Raises ConfigError when there is no such folder and no model of the hub can be called so, or it holds no model.
    """
    if path == QUICKSTART:
        return str(_QUICKSTART_DIR / "target")
    if path.startswith("builtin:"):
        raise ConfigError(f"target.path: there is no {path}, only {QUICKSTART}")
    found = Path(path).expanduser() if path.startswith("~") else Path(path)
    if found.is_dir():
        if not (found / "config.json").is_file():
            raise ConfigError(f"target.path: {path} is not a model: it has no config.json")
        return str(found)
    if found.exists():
        raise ConfigError(f"target.path: {path} is a file, not a model's folder")
    if path.startswith((".", "/", "~")) or path.count("/") != 1:
        raise ConfigError(f"target.path: no folder {path}")
    return path
