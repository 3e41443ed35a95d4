from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dfl_mp.data.conversations import BadRow, parse_row, read_conversations
from dfl_mp.data.report import KEEP_FIRST, Progress
from dfl_mp.errors import ConfigError
from dfl_mp.inputs import QUICKSTART, find_file
from tests.unit.tiny_tokenizer import chat, write_jsonl

GOOD = json.dumps({"messages": chat("hi", "hello")}).encode()


def test_both_forms_give_the_same_messages() -> None:
    sharegpt = {
        "conversations": [
            {"from": "system", "value": "s"},
            {"from": "human", "value": "q"},
            {"from": "gpt", "value": "a"},
            {"from": "tool", "value": "t"},
            {"from": "chatgpt", "value": "b"},
        ]
    }
    roles = [turn["role"] for turn in parse_row(sharegpt)]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert parse_row({"messages": list(parse_row(sharegpt))}) == parse_row(sharegpt)


def test_text_parts_and_a_system_prompt_beside_the_turns() -> None:
    row = {
        "system": "be brief",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, *chat("", "b")[1:]],
    }
    assert [turn["content"] for turn in parse_row(row)] == ["be brief", "a", "b"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": "x"}, "neither messages nor conversations"),
        ({"messages": []}, "no turns"),
        ({"messages": "hi"}, "no turns"),
        ({"messages": ["hi"]}, "a turn is not an object"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "unknown role"),
        ({"conversations": [{"from": None, "value": "x"}]}, "unknown role"),
        ({"messages": [{"role": "user", "content": None}]}, "a turn without text"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]}, "a turn without text"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no assistant turn"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [1]}]}, "a turn with tool_calls"),
        ({"messages": chat("\ud800", "x")}, "a lone surrogate in the text"),
    ],
)
def test_a_bad_row_has_its_reason(row: dict, reason: str) -> None:
    with pytest.raises(BadRow) as caught:
        parse_row(row)
    assert caught.value.reason == reason


def test_bad_lines_are_named_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    lines = [GOOD, b"{oops", b"", b"[1]", b'{"messages": [{"role": "wizard", "content": ""}]}', b"\xff\xfe{}", GOOD]
    path.write_bytes(b"\n".join(lines))
    found, report = read_conversations(str(path))
    assert [conversation.line for conversation in found] == [1, 7]
    assert (report.lines, report.kept) == (6, 2)
    assert report.skipped == {"not JSON": 1, "not a JSON object": 1, "unknown role": 1, "not UTF-8": 1}
    assert [line.split(":")[0] for line in report.first] == ["line 2", "line 4", "line 5", "line 6"]
    assert "wizard" in report.first[2]


def test_byte_order_mark_windows_line_ends_and_gzip(tmp_path: Path) -> None:
    path, packed = tmp_path / "chats.jsonl", tmp_path / "chats.jsonl.gz"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD + b"\r\n\r\n" + GOOD + b"\r\n")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for each in (path, packed):
        found, report = read_conversations(str(each))
        assert [conversation.line for conversation in found] == [1, 3]
        assert not report.skipped


def test_only_the_first_bad_rows_are_kept_by_name(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_bytes(GOOD + b"\n" + b"x\n" * 50)
    report = read_conversations(str(path))[1]
    assert report.skipped == {"not JSON": 50}
    assert len(report.first) == KEEP_FIRST


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "is empty"), (b"\n \n", "is empty"), (b"\nx\ny\n", "line 2: not JSON")]
)
def test_a_file_without_a_good_line_is_the_users_error(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"data\.path") as caught:
        read_conversations(str(path))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_folder_torn_gzip_and_unknown_builtin(tmp_path: Path) -> None:
    torn = tmp_path / "torn.jsonl.gz"
    torn.write_bytes(gzip.compress(GOOD * 100)[:40])
    for path in (str(tmp_path / "none.jsonl"), str(tmp_path), str(torn), "builtin:other"):
        with pytest.raises(ConfigError, match=r"data\.path"):
            read_conversations(path)


def test_quickstart_lies_in_the_package() -> None:
    assert find_file(QUICKSTART, "data.path", "train.jsonl").parent.name == "quickstart"
    assert not read_conversations(QUICKSTART)[1].skipped


def test_the_first_rows_only(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "chats.jsonl", [{"messages": chat(f"q{i}", "a")} for i in range(9)])
    assert len(read_conversations(str(path), 4)[0]) == 4


def test_progress_speaks_every_few_seconds_and_not_at_the_end() -> None:
    now, said = [0.0], []
    progress = Progress("tokenising", 1000, 2.0, said.append, lambda: now[0])
    for done in range(1, 1001):
        now[0] += 0.01
        progress.update(done)
    assert len(said) == 4
    assert said[0] == "tokenising: 200 of 1,000 (20 %), 8 s left"
