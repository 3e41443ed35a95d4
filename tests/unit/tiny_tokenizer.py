"""A byte-level BPE tokenizer of some 400 tokens, trained in a moment, with one of several chat templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

PAD, START, END, SPARE = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|reserved_7|>"
TEXT = [
    "system user assistant tool\n",
    "What is two and three? It is five, said the teacher.\n",
    "blue sky, green grass",
] * 4

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] + '<|im_end|>\\n' }}{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
THINKING = (  # as Qwen3: earlier answers lose their thoughts, the last one gets an empty thought if it has none
    "{% for m in messages %}{% set c = m['content'] %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m['role'] == 'assistant' %}{% set answer = c.split('</think>')[-1].lstrip('\\n') %}"
    "{% if loop.last %}{% set thought = c.split('</think>')[0].split('<think>')[-1] if '</think>' in c else '' %}"
    "{{ '<think>\\n' + thought.strip() + '\\n</think>\\n\\n' + answer }}{% else %}{{ answer }}{% endif %}"
    "{% else %}{{ c }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PLAIN = (  # as Llama 2: strips, and closes an answer with a blank and eos
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'].strip() + ' <|im_end|>' }}{% endif %}{% endfor %}"
)


def tiny_tokenizer(template: str | None = CHATML, trim_offsets: bool = True, **options: Any) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(TEXT, trainer)
    names = {"pad_token": PAD, "eos_token": END, "additional_special_tokens": [START], **options}
    return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=template, **names)


def chat(*turns: str, system: str | None = None) -> list[dict[str, str]]:
    """Messages of alternating user and assistant."""
    head = [{"role": "system", "content": system}] if system is not None else []
    return head + [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
