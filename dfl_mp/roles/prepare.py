"""First process of a run: checks target and data, writes the packs, and leaves `prepared.json` for every worker.

    python -m dfl_mp.roles.prepare RUN_DIR

Consumes `RUN_DIR/config.json`; waits for nothing; produces `RUN_DIR/prepared.json` and a folder under `data.cache_dir`.
A `prepared.json` that is there already is what the run was begun with: other data or another target are refused.
Exit 0 done, 2 the user's input is wrong (one line `error: …` on stderr), 1 anything else (a traceback).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dfl_mp.config import Config, TargetConfig, parse
from dfl_mp.data.prepare import Say, prepare_data
from dfl_mp.data.summary import describe
from dfl_mp.errors import ConfigError
from dfl_mp.log import write_json
from dfl_mp.roles.unchanged import refuse_changes
from dfl_mp.specs import Prepared, TargetSpec


def prepare(config: Config, target: TargetSpec, tokenizer: Any, say: Say = print) -> Prepared:
    """Everything a worker needs to know, with the packs on disk. Raises ConfigError."""
    from dfl_mp.model.attention import with_frequencies
    from dfl_mp.model.target_spec import drafter_spec

    with_frequencies(
        drafter_spec(config.drafter, target, mask_token_id=0)
    )  # a wrong shape is told before the data are made
    data = prepare_data(config, target, tokenizer, say)
    for line in describe(data.report):
        say(f"data: {line}")
    return Prepared(
        target=target,
        drafter=with_frequencies(drafter_spec(config.drafter, target, data.mask_token_id)),
        data_dir=str(data.folder),
        num_packs=data.shape.num_packs,
        num_steps=data.num_steps,
        row_tokens=data.shape.row_tokens,
        rows_per_pack=data.shape.rows_per_pack,
        anchors_per_row=data.shape.anchors_per_row,
        num_prompts=data.num_prompts,
        report=data.report,
        packs=data.packs,
        sources=data.sources,
    )


def load_tokenizer(config: TargetConfig, path: str) -> Any:
    """The tokenizer of the target at `path` (a folder or hub name). Raises ConfigError naming `target.path`."""
    from transformers import AutoTokenizer

    from dfl_mp.model.hub import reason

    try:
        return AutoTokenizer.from_pretrained(path, revision=config.revision, trust_remote_code=config.trust_remote_code)
    except Exception as error:  # transformers raises a dozen types for a folder that holds no usable tokenizer
        raise ConfigError(f"target.path: no tokenizer can be loaded from {path}: {reason(error)}") from error


def read_config(run_dir: Path) -> Config:
    path = run_dir / "config.json"
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"run.dir: cannot read {path}: {error}") from None
    return parse(tree)


def read_before(path: Path) -> Prepared | None:
    """What the run was begun with, if it was. Raises ConfigError: that cannot be read."""
    if not path.exists():
        return None
    try:
        return Prepared.read(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"run.dir: cannot read {path}: {' '.join(str(error).split())}") from None


def run(run_dir: Path) -> None:
    from dfl_mp.model.target_load import end_names
    from dfl_mp.model.target_spec import describe_target

    config, path = read_config(run_dir), run_dir / "prepared.json"
    before = read_before(path)
    target = describe_target(config.target)
    target = target.model_copy(update={"ends": end_names(target, config.target)})
    if config.target.load_format == "dummy":
        _say("target: random weights (target.load_format=dummy); what is trained, exported and evaluated means nothing")
    prepared = prepare(config, target, load_tokenizer(config.target, target.path), _say)
    if before is not None:
        refuse_changes(before, prepared, config)
    write_json(path, prepared.model_dump(mode="json"))


def _say(line: str) -> None:
    print(line, flush=True)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("error: usage: python -m dfl_mp.roles.prepare RUN_DIR", file=sys.stderr)
        return 2
    try:
        run(Path(arguments[0]))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
