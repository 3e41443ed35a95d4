"""Tables of `docs/why-processes.md` and its picture, from result files.

python -m benchmarks.threads_vs_processes.report [--results FILE ...] [--doc docs/why-processes.md]

Rewrites what stands between the two marker comments of the page; a later run's cell replaces an earlier one's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.threads_vs_processes.findings import findings
from benchmarks.threads_vs_processes.groups import (
    Cell,
    Group,
    each_of_lone,
    failed_share,
    rate,
    read_groups,
    unfinished,
)
from benchmarks.threads_vs_processes.picture import draw
from benchmarks.threads_vs_processes.results import FOLDER
from dfl_mp.errors import ConfigError
from launcher.compose import REPO

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
NOTHING = "–"
ERROR_LENGTH = 60
HEAD = (
    "cell",
    "steps",
    "failed",
    "tokens/s",
    "each, of the lone one's",
    "first step, s",
    "recompiles",
    "attention",
    "loss against the lone drafter's",
    "GPU MB",
    "host MB",
)


def tables(groups: Sequence[Group]) -> str:
    return "\n\n".join([flag_table(groups), *(table(group) for group in groups)])


def flag_table(groups: Sequence[Group]) -> str:
    """What another thread sees, by version of torch."""
    versions = {group.torch: group.per_process for group in groups}
    words = {True: "seen by all threads", False: "not seen by others", None: "not set by a compile"}
    names = list(dict.fromkeys(name for flags in versions.values() for name in flags))
    rows = [
        [name, *(words[flags[name]] if name in flags else NOTHING for flags in versions.values())] for name in names
    ]
    return _markdown(("state", *(f"torch {version}" for version in versions)), rows)


def table(group: Group) -> str:
    title = f"### {group.title}\n\n" + "; ".join(f"`{command}`" for command in group.commands) + f" ({group.date})"
    notes = [
        f"    {cell['name']}: {count} × {error}" for cell in group.cells for error, count in cell["errors"].items()
    ]
    notes += [f"    {cell['name']}: broke with {error}" for cell in group.cells for error in cell["broken"]]
    text = title + "\n\n" + _markdown(HEAD, [row(cell, group) for cell in group.cells])
    text += "\n\n" + "\n".join(f"- {sentence}" for sentence in findings(group))
    return text + ("\n\nWhat failed, in full:\n\n" + "\n".join(notes) if notes else "")


def row(cell: Cell, group: Group) -> list[str]:
    memory = cell["memory"]
    return [
        cell["name"],
        f"{cell['steps']:,}",
        failed(cell),
        _number(rate(cell)),
        each(cell, group),
        _span(cell["first_step_s"], "{:.0f}") + (f" ({cell['at_once']} at once)" if cell.get("at_once", 1) > 1 else ""),
        str(cell["recompiles"]),
        cell.get("attention", NOTHING),
        loss(cell),
        _number(memory["gpu_used_mb"]),
        _number(memory.get("host_own_mb", memory["host_mb"])),
    ]


def failed(cell: Cell) -> str:
    """`36 (75 %): RuntimeError: …`, with the most frequent error cut short."""
    text = str(cell["failed_steps"])
    if cell["errors"]:
        error = max(cell["errors"], key=cell["errors"].__getitem__)
        shown = error if len(error) <= ERROR_LENGTH else f"{error[:ERROR_LENGTH]}…"
        text += f" ({100 * failed_share(cell):.0f} %): {shown}"
    text += "; broken" if cell["broken"] else ""
    text += "; unfinished" if unfinished(cell) else ""
    return text + ("; cut off" if cell.get("cut_off") else "")


def each(cell: Cell, group: Group) -> str:
    return _span([100 * share for share in each_of_lone(cell, group)], "{:.0f}", " %")


def loss(cell: Cell) -> str:
    """Equal to the last bit, or how far off at most in the first steps and in all."""
    found = cell["loss"]
    if not found.get("compared_steps"):
        return NOTHING
    if found["bitwise_equal"] == found["compared_steps"]:
        return f"equal in {found['compared_steps']:,}"
    first = found.get("deviation_of_first_steps")
    early = f"≤ {first:.1e} in the first steps, " if first is not None else ""
    return f"{early}≤ {found['largest_relative_deviation']:.1e} in {found['compared_steps']:,}"


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def _span(values: Sequence[float], form: str, unit: str = "") -> str:
    """`41–43 %`, or `41 %` where both ends read the same."""
    if not values:
        return NOTHING
    ends = dict.fromkeys(form.format(x) for x in (min(values), max(values)))
    return "–".join(ends) + unit


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def write(doc: Path, text: str) -> None:
    """Raises ConfigError where the page lacks one of the marker comments."""
    page = doc.read_text()
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ConfigError(f"{doc}: needs one line {BEGIN} and after it one line {END}")
    before, rest = page.split(BEGIN)
    doc.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, nargs="+", default=sorted(FOLDER.glob("threads_vs_processes-*.json")))
    parser.add_argument("--doc", type=Path, default=REPO / "docs" / "why-processes.md")
    options: Any = parser.parse_args(arguments)
    groups = read_groups(options.results)
    try:
        write(options.doc, tables(groups))
    except ConfigError as error:
        raise SystemExit(str(error)) from None
    print(f"{options.doc}: {', '.join(group.title for group in groups)}")
    print(draw(groups, options.doc.with_suffix(".png")))


if __name__ == "__main__":
    main()
