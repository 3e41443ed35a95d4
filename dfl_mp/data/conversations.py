"""Reads conversations from JSONL: `messages` of {role, content}, or ShareGPT `conversations` of {from, value}.

A row that is not a conversation is named, skipped and counted; a file without a single good row is an error.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfl_mp.data.report import Report
from dfl_mp.errors import ConfigError
from dfl_mp.inputs import find_file

ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""What a row may call its speakers -> what the chat template is given."""


@dataclass(frozen=True)
class Conversation:
    """One good row; `line` counts from 1 and is the document's id from here on."""

    line: int
    messages: tuple[dict[str, str], ...]

    @property
    def first_user_turn(self) -> str:
        return next((m["content"].strip() for m in self.messages if m["role"] == "user"), "")


class BadRow(Exception):
    """A row that cannot be used: a reason of few distinct values, and what it was about."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def read_conversations(path: str, most: int | None = None) -> tuple[list[Conversation], Report]:
    """All good conversations of `data.path` in file order, the first `most` if given.

    Raises ConfigError naming `data.path` for a missing, unreadable or empty file, and one naming the first bad line
    when no line is good.
    """
    report, found = Report(), []
    for line, raw in read_lines(find_file(path, "data.path", "train.jsonl"), "data.path"):
        report.lines += 1
        try:
            found.append(Conversation(line, parse_row(parse_json(raw))))
        except BadRow as bad:
            report.skip(line, bad.reason, bad.detail)
        if most is not None and len(found) >= most:
            break
    if not report.lines:
        raise ConfigError(f"data.path: {path} is empty")
    if not found:
        raise ConfigError(f"data.path: no line of {path} is a conversation; {report.first[0]}")
    report.kept = len(found)
    return found, report


def read_lines(path: Path, field: str) -> Iterator[tuple[int, bytes]]:
    """(number, bytes) of each line that is not blank, without byte-order mark and line end; `.gz` is unpacked."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                line = (raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw).strip()
                if line:
                    yield number, line
    except (OSError, EOFError) as error:
        raise ConfigError(f"{field}: cannot read {path}: {error}") from None


def parse_json(raw: bytes) -> dict[str, Any]:
    try:
        row = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRow("not UTF-8", f"byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise BadRow("not JSON", str(error)) from None
    if not isinstance(row, dict):
        raise BadRow("not a JSON object", f"a {type(row).__name__}; one conversation a line is expected")
    return row


def parse_row(row: dict[str, Any]) -> tuple[dict[str, str], ...]:
    """`{"messages": [{"role": "user", "content": "hi"}, …]}` or ShareGPT -> messages with the template's role names.

    Raises BadRow. A ShareGPT `system` beside the turns goes first.
    """
    if "messages" in row:
        turns, role_key, text_key = row["messages"], "role", "content"
    elif "conversations" in row:
        turns, role_key, text_key = row["conversations"], "from", "value"
    else:
        raise BadRow("neither messages nor conversations", ", ".join(row))
    if not isinstance(turns, list) or not turns:
        raise BadRow("no turns")
    messages = tuple(parse_turn(turn, role_key, text_key) for turn in turns)
    system = row.get("system")
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages = ({"role": "system", "content": _checked_text(system)}, *messages)
    if all(message["role"] != "assistant" for message in messages):
        raise BadRow("no assistant turn")
    return messages


def parse_turn(turn: Any, role_key: str, text_key: str) -> dict[str, str]:
    """One turn with the template's role name, from either spelling of its keys. Raises BadRow."""
    if not isinstance(turn, dict):
        raise BadRow("a turn is not an object", type(turn).__name__)
    if role_key not in turn and text_key not in turn:  # some files mix the two spellings
        role_key, text_key = {"role": ("from", "value"), "from": ("role", "content")}[role_key]
    role = turn.get(role_key)
    if not isinstance(role, str) or role.lower() not in ROLES:
        raise BadRow("unknown role", repr(role))
    for extra in ("tool_calls", "function_call", "reasoning_content"):
        if turn.get(extra):
            raise BadRow(f"a turn with {extra}", "put the text into the turn's content")
    return {"role": ROLES[role.lower()], "content": _checked_text(_plain_text(turn.get(text_key)))}


def _plain_text(content: Any) -> str:
    """A string, or OpenAI's list of `{"type": "text", "text": …}` parts joined."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        parts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
        ]
        if all(isinstance(part, str) for part in parts):
            return "".join(parts)  # type: ignore[arg-type]
    raise BadRow("a turn without text", type(content).__name__)


def _checked_text(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow("a lone surrogate in the text") from None
    return text
