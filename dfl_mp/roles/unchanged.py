"""Whether a run that is resumed finds what it was begun with: the files behind `data.path` and `target.path`. Pure.

Fields of the config are compared by the launcher. Here it is what was made of them, as two `prepared.json` say. Free to
change: where files lie, the prompts, the report, and the data file itself where the packs stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dfl_mp.config import Config
from dfl_mp.errors import ConfigError
from dfl_mp.specs import Prepared, Sources, Spec

PACKS = ("num_packs", "num_steps", "row_tokens", "rows_per_pack", "anchors_per_row")


def refuse_changes(before: Prepared, now: Prepared, config: Config) -> None:
    """Raises ConfigError naming the field whose files have changed, and what is different by that."""
    target = list(_differences(before.target, now.target, exclude={"path"}))
    other = list(_differences(before.drafter, now.drafter, exclude={"frequencies"}))
    other += _differences(before, now, include=set(PACKS))
    if before.packs is not None and before.packs != now.packs:
        other.append("the packs differ")
    if target:
        raise _refusal(f"target.path: the config of {config.target.path} has changed", target)
    if other:
        raise _refusal(_culprit(before.sources, now.sources, config), other)


def _culprit(before: Sources | None, now: Sources | None, config: Config) -> str:
    if before is None or now is None or before == now:
        return f"data.path: what is made of {config.data.path} has changed"
    if before.data != now.data:
        return f"data.path: {config.data.path} has changed"
    if before.tokenizer != now.tokenizer:
        return f"target.path: the tokenizer of {config.target.path} has changed"
    return f"data.path: what transformers {now.transformers}, {before.transformers} before, makes of it has changed"


def _refusal(what: str, differences: list[str]) -> ConfigError:
    return ConfigError(
        f"{what} since the run was begun ({', '.join(differences)}); go on with it as it was, or choose another run.dir"
    )


def _differences(before: Spec, now: Spec, **fields: Any) -> Iterator[str]:
    """In the form of JSON, in which a tuple is a list."""
    old, new = (spec.model_dump(mode="json", **fields) for spec in (before, now))
    for name in new:
        if old[name] != new[name]:
            yield f"{name} was {old[name]!r}, now {new[name]!r}"
