"""A target's folder without weights, for runs with `target.load_format=dummy`.

    python -m benchmarks.dummy_target qwen3_8b /tmp/qwen3_8b
    python -m launcher train target.path=/tmp/qwen3_8b target.load_format=dummy data.path=chats.jsonl

It holds a `config.json` of known shapes and the small tokenizer that ships with dfl-mp; ids beyond that tokenizer exist
in the embedding and are never fed.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from transformers import Qwen3Config

from dfl_mp.quickstart import TARGET

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3_8b": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    "27b": {
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 248320,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 4096,
    },
}
"""All dense, of Qwen3's class; `27b` has the shapes of a 27B model, not its layers."""


def dummy_config(size: str) -> Qwen3Config:
    """The config of a size, with the special tokens of the small tokenizer."""
    return Qwen3Config(
        **SHAPES[size],
        architectures=["Qwen3ForCausalLM"],
        max_position_embeddings=40960,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=False,
        use_sliding_window=False,
        dtype="bfloat16",
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
    )


def write(size: str, folder: Path) -> Path:
    """Make the folder; files in it that have the same names are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    dummy_config(size).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(TARGET / name, folder / name)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=sorted(SHAPES))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    print(f"written: {write(arguments.size, arguments.folder)}")


if __name__ == "__main__":
    main()
