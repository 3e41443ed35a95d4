"""The tokenizer's own chat template, and which characters of its text the assistant wrote.

Spans are found in the rendered text, so that the whole text is tokenised once and token borders are those of serving.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

from dfl_mp.data.conversations import BadRow
from dfl_mp.errors import ConfigError

Message = dict[str, str]
Span = tuple[int, int]
"""Characters [start, end) of the rendered text."""

_MARKERS = re.compile(r"\{%-?\s*generation\s*-?%\}")


class ChatFormat:
    """Renders conversations with a tokenizer's template and finds the assistant's words in the text."""

    def __init__(self, tokenizer: Any) -> None:
        try:
            self.template: str = tokenizer.get_chat_template()
        except ValueError:
            raise ConfigError(f"target.path: the tokenizer of {tokenizer.name_or_path} has no chat template") from None
        self._special = dict(tokenizer.special_tokens_map)
        self.marked = bool(_MARKERS.search(self.template))
        """Whether the template itself says what the assistant wrote."""
        self._lead = self._blanks_before_content()

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        """Raises BadRow when the template refuses the messages."""
        return self._render(messages, add_generation_prompt=add_generation_prompt)[0]

    def assistant_spans(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """The rendered text, and one span per assistant turn: its content without header and end-of-turn token.

        With `{% generation %}` in the template, the spans are what it marks. Else each content is located between the
        pieces that the template puts around it; a template may rewrite earlier turns (Qwen3 drops their <think>), then
        the span is what is left of the turn. Raises BadRow when a turn cannot be located with certainty.

            <|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\nhello<|im_end|>\\n   ->   the span of "hello"
        """
        if self.marked:
            text, spans = self._render(messages, return_assistant_tokens_mask=True)
            return text, [(start, end) for start, end in spans if start < end]
        text = self.render(messages)
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        found = _walk(text, self._pieces(messages, turns, text), [messages[i]["content"] for i in turns])
        spans = found if found is not None else [self._locate(text, messages, i) for i in turns]
        lead = self._lead
        return text, [(start - len(lead) if text.endswith(lead, 0, start) else start, end) for start, end in spans]

    def _blanks_before_content(self) -> str:
        """What stands between the header of an answer and its content, if blanks: the assistant's, often in one token.

        Raises ConfigError when the template does not take a question.
        """
        question = [{"role": "user", "content": "x"}]
        try:
            header = self.render(question, add_generation_prompt=True)
            pieces = self._pieces([*question, {"role": "assistant", "content": ""}], [1], header)
        except BadRow as bad:
            raise ConfigError(f"target.path: the chat template fails on one question: {bad.detail}") from None
        between = pieces[0].removeprefix(header) if pieces and pieces[0].startswith(header) else ""
        return between if between.isspace() else ""

    def _render(self, messages: Sequence[Message], **options: Any) -> tuple[str, list[Span]]:
        try:
            rendered: Any = render_jinja_template(
                conversations=[list(messages)], chat_template=self.template, **options, **self._special
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise BadRow("the chat template refuses it", str(error)) from None
        texts, spans = rendered
        return texts[0], spans[0] if spans else []

    def _pieces(self, messages: Sequence[Message], turns: list[int], text: str) -> list[str]:
        """What the template writes before, between and after the contents of `turns`; [] if they do not all appear."""
        stem = "dflturn"
        while stem in text:
            stem += "n"
        marks = [f"{stem}{i}x" for i in turns]
        replaced = list(messages)
        for i, mark in zip(turns, marks, strict=True):
            replaced[i] = {**messages[i], "content": mark}
        rest, pieces = self.render(replaced), []
        for mark in marks:
            before, found, rest = rest.partition(mark)
            if not found or mark in rest:
                return []
            pieces.append(before)
        return [*pieces, rest]

    def _locate(self, text: str, messages: Sequence[Message], i: int) -> Span:
        """Span of turn `i` by itself, for templates that rewrite a content."""
        pieces = self._pieces(messages, [i], text)
        if not pieces or not text.endswith(pieces[1]):
            raise BadRow("the chat template rewrites it beyond recognition", f"turn {i + 1}")
        end = len(text) - len(pieces[1])
        if text.startswith(pieces[0]) and text[len(pieces[0]) : end].strip() == messages[i]["content"].strip():
            return len(pieces[0]), end
        for prefix in (self.render(messages[:i], add_generation_prompt=True), pieces[0]):
            if text.startswith(prefix) and len(prefix) <= end:
                return len(prefix), end
        raise BadRow("the chat template rewrites it beyond recognition", f"turn {i + 1}")


def _walk(text: str, pieces: list[str], contents: list[str]) -> list[Span] | None:
    """Spans of contents that stand verbatim (or stripped) between the pieces; None if one does not."""
    if not pieces or not text.startswith(pieces[0]):
        return None
    at, spans = len(pieces[0]), []
    for content, after in zip(contents, pieces[1:], strict=True):
        for form in (content, content.strip(), content.lstrip(), content.rstrip()):
            if text.startswith(form + after, at):
                break
        else:
            return None
        spans.append((at, at + len(form)))
        at += len(form) + len(after)
    return spans if at == len(text) else None
