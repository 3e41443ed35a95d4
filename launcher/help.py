"""What `python -m launcher --help` says."""

from __future__ import annotations

from collections.abc import Mapping

from launcher import compose

OVERRIDES = {
    "experiment=smollm2": "a whole recipe, see above",
    "target.path=/models/my-model": "folder or hub name of the target",
    "data.path=chats.jsonl": "your conversations, one JSON object a line",
    "data.prompts=prompts.jsonl": "held-out prompts: measure acceptance by real decoding at the end",
    "cluster.targets=1 cluster.drafters=2": "how many workers; left out: chosen from the machine",
    "train.max_steps=100": "stop after so many optimizer steps",
    "train.packs_per_step=24": "batch size of a step, whatever the number of drafters",
    "train.seed=1": "data order, anchors and initial weights",
    "optim.lr=3e-4": "learning rate at the top of the schedule",
    "checkpoint.every_steps=500": "what a machine that goes down loses at most; 0: saved only at the end",
    "run.dir=runs/mine": "folder of the run; one that exists is resumed",
}


def text(commands: Mapping[str, str]) -> str:
    """The help text; `commands` maps a name to its one line."""
    lines = ["usage: python -m launcher COMMAND [override ...]", "", "commands"]
    lines += _table(commands)
    lines += ["", "experiments (experiment=NAME)", *_table(compose.experiments())]
    lines += ["", "config groups (GROUP=CHOICE)"]
    lines += _table({name: ", ".join(choices) for name, choices in compose.groups().items()})
    lines += ["", "overrides (FIELD=VALUE; every field of conf/ can be given)", *_table(OVERRIDES)]
    lines += [
        "",
        "options",
        *_table(
            {
                "--detach": "train without this terminal",
                "--cfg job": "print the composed config and stop",
                "--help": "this text",
            }
        ),
    ]
    lines += ["", "exit code: 0 done, 1 the run failed or was stopped, 2 the input is wrong"]
    return "\n".join(lines)


def _table(rows: Mapping[str, str]) -> list[str]:
    width = max(map(len, rows), default=0)
    return [f"  {name:<{width}}  {line}".rstrip() for name, line in rows.items()]
