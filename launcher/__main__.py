"""Command line: `python -m launcher COMMAND [option ...] [override ...]`. Exit code 0 done, 1 failed, 2 wrong input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from dfl_mp.errors import ConfigError, DflError
from launcher import attach, compose, ctl, detach, help, resume, train

COMMANDS: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {
    "train": ("train a drafter; with run.dir= of a run that exists, go on with it", train.main),
    "resume": ("go on with a run that ended early: resume [RUN] [override ...]", resume.main),
    "attach": ("show the screen of a run that is under way: attach [RUN], the newest when left out", attach.main),
    **{name: (line, partial(ctl.main, name)) for name, line in ctl.HELP.items()},
}


def main(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in ctl.HELP and not {"--help", "-h"} & set(arguments):
        return ctl.main(arguments[0], arguments[1:])
    usage = help.text({name: line for name, (line, _) in COMMANDS.items()})
    if "--help" in arguments or "-h" in arguments:
        print(usage)
        return 0
    if not arguments or arguments[0] not in COMMANDS:
        wrong = f"error: unknown command {arguments[0]!r}\n\n" if arguments else ""
        print(f"{wrong}{usage}", file=sys.stderr)
        return 2
    overrides = list(arguments[1:])
    if "--cfg" in overrides:
        print(compose.to_yaml(_without_cfg(overrides)), end="")
        return 0
    if arguments[0] == "train" and detach.OPTION in overrides:
        return detach.main([word for word in overrides if word != detach.OPTION])
    if arguments[0] == "train" and overrides and overrides[0].startswith(detach.REPORT):
        return train.main(overrides[1:], report=detach.Report(int(overrides[0].removeprefix(detach.REPORT))))
    for word in overrides:
        if word.startswith("-"):
            raise ConfigError(f"unknown option {word!r}; see python -m launcher --help")
    return COMMANDS[arguments[0]][1](overrides)


def _without_cfg(arguments: list[str]) -> list[str]:
    at = arguments.index("--cfg")
    if arguments[at + 1 : at + 2] != ["job"]:
        raise ConfigError("--cfg: only `--cfg job` is known")
    return arguments[:at] + arguments[at + 2 :]


def run(arguments: Sequence[str]) -> int:
    """`main` with errors as one line and an exit code."""
    try:
        return main(arguments)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except DflError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
