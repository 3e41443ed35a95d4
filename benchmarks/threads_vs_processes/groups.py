"""Result files read for the report: the cells of one machine, size and torch together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
"""As `bench.py` writes it."""


@dataclass
class Group:
    device: str
    gpus: int
    """0 on a CPU."""
    size: str
    torch: str
    date: str = ""
    per_process: dict[str, bool | None] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)

    @property
    def title(self) -> str:
        where = f"{self.gpus} × {self.device}" if self.gpus else self.device
        return f"{where}, size {self.size}, torch {self.torch}"

    def add(self, cell: Cell) -> None:
        """In the place of one of the same name, if there is one."""
        names = [c["name"] for c in self.cells]
        if cell["name"] in names:
            self.cells[names.index(cell["name"])] = cell
        else:
            self.cells.append(cell)


def read_groups(paths: Sequence[Path]) -> list[Group]:
    """Machines with GPUs first, otherwise in the order of the files' dates and of their runs."""
    contents = sorted((json.loads(path.read_text()) for path in paths), key=lambda content: str(content["date"]))
    groups: dict[tuple[str, int, str, str], Group] = {}
    for content in contents:
        for run in content["runs"]:
            key = run["device"], run["gpus"], run["size"], run["torch"]
            group = groups.setdefault(key, Group(*key))
            group.date, group.per_process = content["date"], run["per_process"]
            group.commands.append(run["what"])
            for cell in run["cells"]:
                group.add(cell)
    found = [group for group in groups.values() if group.cells]
    return sorted(found, key=lambda group: group.gpus == 0)


def rate(cell: Cell) -> float | None:
    """Tokens/s of all drafters; None where others were at work beside, which slows it."""
    value: float | None = cell["tokens_per_s"]
    return None if cell.get("beside") else value


def each_of_lone(cell: Cell, group: Group) -> list[float]:
    """Each drafter's rate over that of a lone one with the same settings, or else of the base's; empty without one."""
    lone = lone_rate(cell, group)
    return [] if lone is None or rate(cell) is None else [x / lone for x in cell["tokens_per_s_each"]]


def lone_rate(cell: Cell, group: Group) -> float | None:
    found = [c for c in group.cells if c["how"] == "alone" and rate(c)]
    for factors in (("lengths", "checkpoint", "mask"), ("lengths", "checkpoint"), ()):
        same = [c for c in found if all(c[f] == cell[f] for f in factors)]
        if same:
            return rate(same[0])
    return None


def failed_share(cell: Cell) -> float:
    """Of all attempts; 0 where nothing was tried."""
    failed: int = cell["failed_steps"]
    tried: int = failed + cell["steps"]
    return failed / max(1, tried)


def unfinished(cell: Cell) -> bool:
    """At its limit it hung, or still compiled."""
    return bool(cell.get("hangs") or cell["unfinished_threads"])
