"""Conversations -> documents: token ids and which of them the drafter is trained on.

`length` is the tokens of a document; a position `a` is eligible as an anchor when it and its successor are trained.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dfl_mp.data.anchors import eligible_positions
from dfl_mp.data.chat import ChatFormat, Message, Span
from dfl_mp.data.conversations import BadRow, Conversation
from dfl_mp.data.report import Report
from dfl_mp.errors import ConfigError

_BATCH = 128


@dataclass(frozen=True)
class Document:
    """tokens int32 [length], loss_mask bool [length], id = line of the row in its file."""

    tokens: np.ndarray
    loss_mask: np.ndarray
    id: int


@dataclass
class Tally:
    """What tokenising has met so far; skipped rows go to the file's report."""

    report: Report
    cut_documents: int = 0
    cut_tokens: int = 0
    turns_without_end: int = 0
    """Turns that no special token closes: the drafter would not learn where such an answer ends."""


class ChatTokenizer:
    """A transformers tokenizer with its chat template and exact character offsets.

    Raises ConfigError naming `target.path` when it has no chat template or no offsets.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.format = ChatFormat(tokenizer)
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(f"target.path: the tokenizer of {tokenizer.name_or_path} has no fast form with offsets")
        self._core = copy.deepcopy(tokenizer.backend_tokenizer)
        self._core.post_processor = None  # the byte-level one trims blanks out of the offsets
        self._core.no_truncation()
        self._core.no_padding()
        self._special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special.update(tokenizer.all_special_ids)
        self._eos = tokenizer.eos_token_id
        probe = self.format.render([{"role": "user", "content": " Hi,\n\n 1 é"}], add_generation_prompt=True)
        if self.encode([probe])[0].ids != tokenizer(probe, add_special_tokens=False)["input_ids"]:
            raise ConfigError(f"target.path: the tokenizer of {tokenizer.name_or_path} rewrites its ids in Python")

    def encode(self, texts: list[str]) -> list[Any]:
        """`tokenizers.Encoding` of each rendered text: ids and offsets, no special tokens added."""
        return list(self._core.encode_batch(texts, add_special_tokens=False))

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the messages and the header of the answer. Raises BadRow when the template refuses them."""
        return list(self.encode([self.format.render(messages, add_generation_prompt=True)])[0].ids)

    def fingerprint(self) -> str:
        """Changes with anything that changes the ids or the loss mask."""
        parts = (self._core.to_str(), self.format.template, repr(sorted(self._special)), repr(self._eos))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def loss_mask(self, text: str, encoding: Any, spans: list[Span]) -> tuple[np.ndarray, int]:
        """bool [length], true on the tokens of the spans and the special token that closes each; how many have none.

        A token belongs to a span if it begins inside. White space behind the closing token is the template's.
        """
        ids, offsets = np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int64).reshape(-1, 2)
        mask, without_end = np.zeros(len(ids), bool), 0
        for start, end in spans:
            first, stop = (int(i) for i in np.searchsorted(offsets[:, 0], (start, end)))
            closed = self._close(text, ids, offsets, (first, stop))
            mask[first : closed or stop] = True
            without_end += closed is None
        return mask, without_end

    def _close(self, text: str, ids: np.ndarray, offsets: np.ndarray, tokens: tuple[int, int]) -> int | None:
        """End of a turn that occupies [first, stop): just behind its closing special token; None without one.

        It stands right behind the turn; with blanks between only the eos token can be it, for others begin a header.
        """
        first, stop = tokens

        def blank(k: int) -> bool:
            return text[offsets[k, 0] : offsets[k, 1]].isspace()

        if self.format.marked:  # what the template marks may hold the closing token, and blanks behind it
            last = stop - 1
            while last > first and blank(last):
                last -= 1
            if last >= first and int(ids[last]) in self._special:
                return last + 1
        if stop < len(ids) and int(ids[stop]) in self._special:
            return stop + 1
        while stop < len(ids) and blank(stop):
            stop += 1
        return stop + 1 if stop < len(ids) and int(ids[stop]) == self._eos else None


def tokenize(
    conversations: Sequence[Conversation], tokenizer: ChatTokenizer, most_tokens: int, tally: Tally
) -> Iterator[Document | None]:
    """The document of each conversation in order, None for one that is skipped; `tally` is kept along.

    Documents are cut at the end to `most_tokens`; one without an eligible position then is skipped.
    """
    for at in range(0, len(conversations), _BATCH):
        rendered: list[tuple[Conversation, str, list[Span]] | None] = []
        for conversation in conversations[at : at + _BATCH]:
            try:
                rendered.append((conversation, *tokenizer.format.assistant_spans(conversation.messages)))
            except BadRow as bad:
                tally.report.skip(conversation.line, bad.reason, bad.detail)
                rendered.append(None)
        encodings = iter(tokenizer.encode([item[1] for item in rendered if item]))
        for item in rendered:
            document = None
            if item:
                conversation, text, spans = item
                encoding = next(encodings)
                mask, without_end = tokenizer.loss_mask(text, encoding, spans)
                tally.turns_without_end += without_end
                whole = Document(np.array(encoding.ids, np.int32), mask, conversation.line)
                document = _cut(whole, most_tokens, tally)
            yield document


def _cut(document: Document, most_tokens: int, tally: Tally) -> Document | None:
    over = len(document.tokens) - most_tokens
    trainable = len(eligible_positions(document.loss_mask)) > 0
    if over > 0:
        document = Document(document.tokens[:most_tokens], document.loss_mask[:most_tokens], document.id)
    if not len(eligible_positions(document.loss_mask)):
        tally.report.skip(
            document.id, "no trained pair of tokens" + (f" in its first {most_tokens}" if trainable else "")
        )
        return None
    if over > 0:
        tally.cut_documents += 1
        tally.cut_tokens += over
    return document
