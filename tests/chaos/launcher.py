"""The launcher's command line with role modules of this package: `python -m tests.chaos.launcher train|resume ...`."""

from __future__ import annotations

import sys
from functools import partial

from launcher import __main__ as cli
from launcher import pulse, train
from launcher.crew import MODULES

MINED = {role: f"tests.chaos.{role}" for role in ("coordinator", "target", "drafter")}
STUB = {"evaluator": "tests.process.stubs.evaluator"}


def main(roles: dict[str, str]) -> int:
    train.main = partial(train.main, modules={**MODULES, **STUB, **roles})  # type: ignore[assignment]
    cli.COMMANDS["train"] = ("", train.main)
    return cli.run(sys.argv[1:])


if __name__ == "__main__":
    pulse.SILENT_AFTER_S = 8.0
    sys.exit(main(MINED))
