from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfl_mp.data.conversations import BadRow, Conversation
from dfl_mp.data.report import Report
from dfl_mp.data.tokenize import ChatTokenizer, Tally, tokenize
from dfl_mp.errors import ConfigError
from tests.unit.tiny_tokenizer import CHATML, MARKED, PLAIN, SPARE, THINKING, chat, tiny_tokenizer

CHATML_TOKENIZER = tiny_tokenizer()
CHATML_CHAT = ChatTokenizer(CHATML_TOKENIZER)
WORDS = st.text(alphabet="ab é\n\t<🙂>", max_size=12)


def one(messages: list[dict[str, str]], chat_tokenizer: ChatTokenizer = CHATML_CHAT, most: int = 10_000):
    tally = Tally(Report())
    (document,) = tokenize([Conversation(1, tuple(messages))], chat_tokenizer, most, tally)
    return document, tally


def trained(document, tokenizer=CHATML_TOKENIZER) -> list[str]:
    """Texts of the trained stretches."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], document.loss_mask, [False]]).astype(int)))
    return [tokenizer.decode(document.tokens[a:b]) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def test_every_assistant_turn_with_its_end_token_and_nothing_else() -> None:
    document, tally = one(chat("What is two?", "It is five", "Green?", " blue sky", system="assistant"))
    assert trained(document) == ["It is five<|im_end|>", " blue sky<|im_end|>"]
    assert tally.turns_without_end == 0


TOKENIZERS = {(trim, t): tiny_tokenizer(t, trim_offsets=trim) for trim in (True, False) for t in (CHATML, MARKED)}


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3), st.booleans(), st.sampled_from([CHATML, MARKED]))
def test_trained_tokens_are_the_answers_whatever_they_hold(pairs, trim: bool, template: str) -> None:
    """Whatever begins inside an answer or its end token is trained, on offsets that no post-processor has trimmed."""
    tokenizer = TOKENIZERS[trim, template]
    text, inside = "", []
    for question, answer in pairs:
        for piece, is_answer in (
            (f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", False),
            (f"{answer}<|im_end|>", True),
            ("\n", False),
        ):
            text += piece
            inside += [is_answer] * len(piece)
    messages = chat(*(turn for pair in pairs for turn in pair))
    rendered, spans = ChatTokenizer(tokenizer).format.assistant_spans(messages)
    encoding = CHATML_CHAT.encode([rendered])[0]
    mask, without_end = ChatTokenizer(tokenizer).loss_mask(rendered, encoding, spans)
    assert (rendered, without_end) == (text, 0)
    assert encoding.ids == tokenizer.apply_chat_template(messages)["input_ids"]
    assert mask.tolist() == [inside[begin] for begin, _ in encoding.offsets]


def test_marked_and_unmarked_templates_agree() -> None:
    messages = chat("What?", "It is five\n\n", "and?", "x")
    plain, marked = one(messages)[0], one(messages, ChatTokenizer(tiny_tokenizer(MARKED)))[0]
    assert plain.tokens.tolist() == marked.tokens.tolist()
    assert plain.loss_mask.tolist() == marked.loss_mask.tolist()


def test_a_template_that_drops_earlier_thoughts() -> None:
    messages = chat("q", "<think>\nhm\n</think>\n\nIt is two", "r", "<think>\nso\n</think>\n\nblue")
    document, _ = one(messages, ChatTokenizer(tiny_tokenizer(THINKING)))
    assert trained(document) == ["It is two<|im_end|>", "<think>\nso\n</think>\n\nblue<|im_end|>"]


def test_an_empty_thought_that_the_template_adds_is_not_trained() -> None:
    document, _ = one(chat("q", "think", "r", "think"), ChatTokenizer(tiny_tokenizer(THINKING)))
    assert trained(document) == ["think<|im_end|>", "think<|im_end|>"]


def test_a_blank_before_the_end_token_and_stripped_contents() -> None:
    document, _ = one(chat("q", "  five\n", "r", "sky"), ChatTokenizer(tiny_tokenizer(PLAIN)))
    assert trained(document) == [" five <|im_end|>", " sky <|im_end|>"]


def test_a_header_is_no_end_token() -> None:
    endless = CHATML.replace("<|im_end|>", "")
    document, tally = one(chat("q", "five", "r", "sky"), ChatTokenizer(tiny_tokenizer(endless)))
    assert trained(document) == ["five", "sky"]
    assert tally.turns_without_end == 2


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "the chat template refuses it"),
        ("{% for m in messages %}{{ m['content'] | upper }}{% endfor %}", "rewrites it beyond recognition"),
        ("{% for m in messages %}{{ m['content'] + m['content'] }}{% endfor %}", "rewrites it beyond recognition"),
    ],
)
def test_what_the_template_does_not_allow_is_a_bad_row(template: str, reason: str) -> None:
    chat_format = ChatTokenizer(tiny_tokenizer()).format
    chat_format.template = template
    with pytest.raises(BadRow) as caught:
        chat_format.assistant_spans(chat("hello", "sky"))
    assert reason in caught.value.reason


def test_a_refused_row_is_counted_and_the_others_go_on() -> None:
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
    rows = [chat("q", "a b"), chat("q", "a b", system="s"), chat("r", "c d")]
    tally = Tally(Report())
    tokenizer = ChatTokenizer(tiny_tokenizer(refusing))
    documents = list(tokenize([Conversation(i, tuple(r)) for i, r in enumerate(rows, 1)], tokenizer, 99, tally))
    assert [document and document.id for document in documents] == [1, None, 3]
    assert tally.report.first == ["line 2: the chat template refuses it (no system)"]


def test_long_documents_are_cut_at_the_end_and_counted() -> None:
    whole, _ = one(chat("What is two?", "It is five, said the teacher. blue sky"))
    cut, tally = one(chat("What is two?", "It is five, said the teacher. blue sky"), most=len(whole.tokens) - 3)
    assert cut.tokens.tolist() == whole.tokens[:-3].tolist()
    assert cut.loss_mask.tolist() == whole.loss_mask[:-3].tolist()
    assert (tally.cut_documents, tally.cut_tokens) == (1, 3)


def test_without_a_trained_pair_a_document_is_dropped_and_counted() -> None:
    document, tally = one(chat("What is two and three?", "five"), most=5)
    assert document is None
    assert tally.report.skipped == {"no trained pair of tokens in its first 5": 1}
    document, tally = one(chat("q", ""))
    assert document is None
    assert tally.report.skipped == {"no trained pair of tokens": 1}


def test_the_prompt_is_what_precedes_the_answer() -> None:
    document, _ = one(chat("What is two?", "five"))
    prompt = CHATML_CHAT.prompt(chat("What is two?"))
    assert prompt == document.tokens[: len(prompt)].tolist()
    assert np.flatnonzero(document.loss_mask)[0] == len(prompt)


def test_a_tokenizer_without_template_is_the_users_error() -> None:
    with pytest.raises(ConfigError, match=r"target.path.*no chat template"):
        ChatTokenizer(tiny_tokenizer(None))


def test_a_template_that_takes_no_question_is_the_users_error() -> None:
    with pytest.raises(ConfigError, match=r"target.path.*not today"):
        ChatTokenizer(tiny_tokenizer("{{ raise_exception('not today') }}"))


def test_the_fingerprint_follows_template_and_vocabulary() -> None:
    prints = {ChatTokenizer(t).fingerprint() for t in (tiny_tokenizer(), tiny_tokenizer(PLAIN))}
    assert len(prints) == 2
    assert ChatTokenizer(tiny_tokenizer()).fingerprint() in prints
    assert ChatTokenizer(tiny_tokenizer(additional_special_tokens=[SPARE])).fingerprint() not in prints
