"""Held-out prompts for the evaluation: the first turn of each, as token ids that end in the answer's header."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfl_mp.data.chat import Message
from dfl_mp.data.conversations import BadRow, parse_json, parse_turn, read_lines
from dfl_mp.data.report import Report
from dfl_mp.data.tokenize import ChatTokenizer
from dfl_mp.errors import ConfigError
from dfl_mp.inputs import find_file

FILE = "prompts.jsonl"


@dataclass(frozen=True)
class Prompt:
    """`ids` end in the header of the answer; `text` is the user's words."""

    ids: tuple[int, ...]
    text: str


def tokenize_prompt(tokenizer: ChatTokenizer, prompt: str | Sequence[Message]) -> list[int]:
    """Ids of one user turn, or of given messages, up to where the answer begins. Raises BadRow if it cannot be."""
    return tokenizer.prompt([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)


def read_prompts(
    path: str, tokenizer: ChatTokenizer, trained_on: Collection[str], most: int, most_tokens: int
) -> tuple[list[Prompt], Report]:
    """The first `most` good prompts of `data.prompts`: rows of `{"turns": …}`, `{"messages": …}` or `{"prompt": …}`.

    Dropped and counted: bad rows, prompts longer than `most_tokens`, and those that are a first user turn of the
    training data (`trained_on`). Raises ConfigError naming `data.prompts` when there is no file or nothing is left.
    """
    report = Report()
    found: list[Prompt] = []
    for line, raw in read_lines(find_file(path, "data.prompts", "heldout.jsonl"), "data.prompts"):
        if len(found) >= most:
            break
        report.lines += 1
        try:
            messages = parse_prompt(parse_json(raw))
            text = messages[-1]["content"]
            if text.strip() in trained_on:
                raise BadRow("also in the training data", text)
            ids = tokenize_prompt(tokenizer, messages)
            if len(ids) > most_tokens:
                raise BadRow("leaves no room for the answer", f"{len(ids)} tokens, {most_tokens} at most")
            found.append(Prompt(tuple(ids), text))
        except BadRow as bad:
            report.skip(line, bad.reason, bad.detail)
    if not found:
        why = report.first[0] if report.first else "the file is empty"
        raise ConfigError(f"data.prompts: no usable prompt in {path}; {why}")
    report.kept = len(found)
    return found, report


def parse_prompt(row: dict[str, Any]) -> list[Message]:
    """The messages up to and including the first user turn, whatever follows. Raises BadRow."""
    if "prompt" in row:
        turns: Any = [{"role": "user", "content": row["prompt"]}]
    elif isinstance(row.get("turns"), list):
        turns = [{"role": "user", "content": text} for text in row["turns"][:1]]
    else:
        turns = row.get("messages", row.get("conversations"))
    messages: list[Message] = []
    for turn in turns if isinstance(turns, list) else ():
        messages.append(parse_turn(turn, "role", "content"))
        if messages[-1]["role"] in ("assistant", "tool") or not messages[-1]["content"].strip():
            break
        if messages[-1]["role"] == "user":
            return messages
    raise BadRow("no prompt, turns or messages that begin with a question", ", ".join(row))


def write_prompts(folder: Path, prompts: Sequence[Prompt]) -> None:
    rows = (json.dumps({"ids": prompt.ids, "text": prompt.text}, ensure_ascii=True) + "\n" for prompt in prompts)
    (folder / FILE).write_text("".join(rows), encoding="utf-8")


def load_prompts(folder: Path) -> list[Prompt]:
    """What `write_prompts` wrote into a data folder; [] when the run has no evaluation."""
    lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
    return [Prompt(tuple(row["ids"]), row["text"]) for row in map(json.loads, lines)]
