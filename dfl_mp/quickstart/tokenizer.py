"""Stage 2: a byte-level BPE tokenizer with a ChatML template."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, START, END, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"
WORDS = r"[^\S\n]?[A-Za-z]+|\d|[^\S\n]?[^\sA-Za-z0-9]+|\s*\n|\s+(?!\S)|\s+"
"""Words with the space before them, single digits, runs of signs, line ends with the space before them."""
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """`vocab_size` includes ids 0 to 3: pad, start, end of turn and mask. There is no unk: bytes cover all text."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, START, END, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        mask_token=MASK,
        additional_special_tokens=[START],
        chat_template=TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def save(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """`tokenizer.json` and `tokenizer_config.json`, with the template inside the latter."""
    tokenizer.save_pretrained(folder, save_jinja_files=False)


def render(prompt: str, answer: str | None = None) -> str:
    """What the template makes of one question, with its answer or up to where the answer begins."""
    text = f"{START}user\n{prompt}{END}\n{START}assistant\n"
    return text if answer is None else f"{text}{answer}{END}\n"
