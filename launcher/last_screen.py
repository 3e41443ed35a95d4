"""The screen that ends a run: what came out of it, where it lies, what to type next. Pure: an ending becomes lines."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from launcher.words import BARS

LABEL = 12
RUN_STYLES = ("green underline", "magenta")
"""Runs of an answer alternate between them; without colours the line under every second one stays."""
ANSWER_LINES = 6
CHART_ROWS = 2


@dataclass(frozen=True)
class Ending:
    """What a finished run says of itself. `facts` and `places` are (label, text), `following` (what, command)."""

    headline: str
    facts: tuple[tuple[str, str], ...]
    places: tuple[tuple[str, str], ...]
    following: tuple[tuple[str, str], ...]
    histogram: dict[int, int] = field(default_factory=dict)
    """Tokens committed by a verification -> how many verifications."""
    sample: dict[str, Any] | None = None
    """`{"prompt": text, "runs": [[text, tokens], ...]}`."""


def screen(ending: Ending, width: int) -> Text:
    """The whole screen; no line is wider than `width`. What matters stands last: a small terminal shows that."""
    lines = [Text(ending.headline, "bold green"), Text()]
    if ending.sample is not None:
        lines += [*_answer(ending.sample, width), Text()]
    if ending.histogram:
        lines += [*_chart(ending.histogram, width), Text()]
    lines += [*_pairs(ending.facts, width), Text(), *_pairs(ending.places, width), Text()]
    for what, command in ending.following:
        lines += _pairs((("next", f"{what}:"),), width)
        lines += [Text.assemble("  ", part) for part in fold(Text(command, "cyan"), width - 2)]
    return Text("\n", no_wrap=True).join(lines)


def _pairs(pairs: tuple[tuple[str, str], ...], width: int) -> list[Text]:
    """A label and its text, which is folded into the column behind it."""
    lines = []
    for label, text in pairs:
        for i, part in enumerate(fold(Text(text.replace(" -> ", " → ")), width - LABEL)):
            lines.append(Text.assemble((f"{label if i == 0 else '':<{LABEL}}", "bold"), part))
    return lines


def _chart(histogram: dict[int, int], width: int) -> list[Text]:
    """How many tokens each forward of the target gave, as columns."""
    most, total = max(histogram), sum(histogram.values())
    size = next(size for size in range(1, most + 1) if math.ceil(most / size) * _cell(size) <= width - LABEL)
    starts = range(1, most + 1, size)
    counts = [sum(histogram.get(n, 0) for n in range(start, start + size)) for start in starts]
    cell, top = _cell(size), max(counts)
    eighths = [math.ceil(count / top * 8 * CHART_ROWS) for count in counts]
    rows = [("tokens", [f"{a}" if size == 1 else f"{a}-{a + size - 1}" for a in starts])]
    rows.append(("forwards", [_percent(count / total) for count in counts]))
    lines = []
    for row in reversed(range(CHART_ROWS)):
        heights = (max(0, min(8, eighth - 8 * row)) for eighth in eighths)
        bars = ((BARS[height - 1] if height else " ") * (cell - 2) for height in heights)
        lines.append(Text.assemble(" " * LABEL, ("".join(f"{column:<{cell}}" for column in bars).rstrip(), "cyan")))
    for label, texts in rows:
        cells = "".join(f"{text:<{cell}}" for text in texts).rstrip()
        lines.append(Text.assemble((f"{label:<{LABEL}}", "bold"), cells))
    return lines


def _percent(share: float) -> str:
    return "·" if share == 0 else f"{share:.0%}" if share >= 0.005 else "<1%"


def _cell(size: int) -> int:
    """Width of a column of `size` lengths."""
    return 5 if size == 1 else 7


def _answer(sample: dict[str, Any], width: int) -> list[Text]:
    """One answer, every second run of it in another style."""
    tokens, forwards = sum(count for _, count in sample["runs"]), len(sample["runs"])
    prompt = fold(Text(sample["prompt"].strip()), width - LABEL)
    lines = _labelled("prompt", prompt, 2, width)
    answer = Text()
    for i, (text, _) in enumerate(sample["runs"]):
        answer.append(text, RUN_STYLES[i % len(RUN_STYLES)])
    lines += _labelled("answer", fold(answer, width - LABEL), ANSWER_LINES, width)
    said = f"{tokens} tokens in {forwards} forwards, the style changes with each"
    return [*lines, *_pairs((("", said),), width)]


def _labelled(label: str, lines: list[Text], most: int, width: int) -> list[Text]:
    """At most `most` lines behind a label, blank ones left out."""
    filled = [line for line in lines if line.plain.strip()] or [Text()]
    shown = filled[:most]
    if len(filled) > most:
        shown[-1].truncate(width - LABEL - 1)
        shown[-1].append("…")
    return [Text.assemble((f"{label if i == 0 else '':<{LABEL}}", "bold"), line) for i, line in enumerate(shown)]


def fold(text: Text, width: int) -> list[Text]:
    """Lines of at most `width` cells, broken at blanks where that is possible; styles stay."""
    lines = []
    for line in text.split("\n", allow_blank=True):
        line.expand_tabs(4)
        while line.cell_len > width:
            at = _break_at(line.plain, width)
            head, line = line.divide([at])
            head.rstrip()
            lines.append(head)
        lines.append(line)
    return lines


def _break_at(text: str, width: int) -> int:
    """Index behind the last blank that lets the beginning fit, or as many characters as fit."""
    fits = cells = 0
    for i, character in enumerate(text):
        cells += cell_len(character)
        if cells > width:
            break
        fits = i + 1
    if text[fits : fits + 1] == " ":
        return fits + 1
    blank = text.rfind(" ", 0, fits)
    return blank + 1 if blank > fits // 2 else max(1, fits)
