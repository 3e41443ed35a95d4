"""A tiny honest job for process tests: a random Qwen3-like target, a small tokenizer, a few dozen conversations."""

from __future__ import annotations

import random
from pathlib import Path

from tests.unit.tiny_targets import save_tiny
from tests.unit.tiny_tokenizer import chat, tiny_tokenizer, write_jsonl

WORDS = ["blue", "sky", "green", "grass", "two", "three", "five", "teacher", "said", "what", "is", "it"]


def write_inputs(folder: Path, num_chats: int = 40, seed: int = 0) -> list[str]:
    """Write target, data and prompts into `folder`; returns the Hydra overrides of a run on them (float64)."""
    rng = random.Random(seed)

    def say(n: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(n)) + "."

    tokenizer = tiny_tokenizer()
    target = save_tiny("qwen3", folder / "target", vocab_size=max(512, len(tokenizer)))
    tokenizer.save_pretrained(target)
    chats = [chat(say(4), say(rng.randint(6, 18))) for _ in range(num_chats)]
    write_jsonl(folder / "chats.jsonl", [{"messages": c} for c in chats])
    write_jsonl(folder / "prompts.jsonl", [{"turns": [say(5)]} for _ in range(4)])
    return [
        "experiment=quickstart",
        f"target.path={target}",
        f"data.path={folder / 'chats.jsonl'}",
        f"data.prompts={folder / 'prompts.jsonl'}",
        f"data.cache_dir={folder / 'cache'}",
        "target.num_features=2",
        "target.dtype=float64",
        "drafter.dtype=float64",
        "drafter.block_size=4",
        "drafter.mask_token_id=500",
        "data.row_tokens=64",
        "data.anchors_per_row=8",
        "eval.num_prompts=4",
        "eval.max_new_tokens=12",
        "train.packs_per_step=4",
        "train.max_steps=6",
        "cluster.slots_per_target=2",
        "cluster.targets=1",
    ]
