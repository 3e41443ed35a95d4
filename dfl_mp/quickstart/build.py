"""Build the quickstart's target, prompts and answers.

`python -m dfl_mp.quickstart.build OUT_DIR [--minutes M | --steps N]`

Five stages; each writes into OUT_DIR and is skipped when its file is there, so delete a file to redo its stage:

    corpus.jsonl               entries of the installed sources (CPU, a minute)
    target/tokenizer.json      trained on the corpus
    target/model.safetensors   trained on the corpus without the names that prompts use; bfloat16
    answers.jsonl              greedy answers, float32, of the weights as stored
    train.jsonl heldout.jsonl report.json
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dfl_mp.errors import ConfigError
from dfl_mp.quickstart import answers as answering
from dfl_mp.quickstart import pretrain
from dfl_mp.quickstart.corpus import Entry, collect
from dfl_mp.quickstart.pairs import Pair, chosen, pairs_of
from dfl_mp.quickstart.tokenizer import render, save, train_tokenizer

VOCAB, MAX_LENGTH = 3072, 512
MAX_PROMPT, MAX_NEW, MIN_NEW = 88, 160, 24
"""Tokens: the rendered prompt, the answer with its end, and the least that is worth a training document."""
ASKED = 2.2
"""Prompts answered for each one wanted, since filters drop some."""


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """One JSON object a line; the file exists only when it is complete."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text("".join(json.dumps(row) + "\n" for row in rows))
    unfinished.rename(path)


def entries(out: Path) -> list[Entry]:
    return [Entry(**row) for row in read(out / "corpus.jsonl")]


def unique_pairs(out: Path, split: str) -> list[Pair]:
    """The pairs of one split in a fixed shuffled order, no prompt twice."""
    found = {pair.prompt: pair for entry in entries(out) if entry.split == split for pair in pairs_of(entry)}
    return sorted(found.values(), key=lambda pair: (chosen(pair.prompt, "order", 2**32), pair.prompt))


def make_corpus(out: Path) -> None:
    write(out / "corpus.jsonl", (asdict(entry) for entry in collect()))


def make_tokenizer(out: Path) -> None:
    texts = (render(pair.prompt, pair.answer) for pair in unique_pairs(out, "train"))
    save(train_tokenizer(texts, VOCAB, MAX_LENGTH), out / "target")


def documents(out: Path, split: str) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(out / "target")
    texts = [render(pair.prompt, pair.answer) for pair in unique_pairs(out, split)]
    return [ids[:MAX_LENGTH] for ids in tokenizer(texts)["input_ids"]]


def make_target(out: Path, device: str, recipe: pretrain.Recipe) -> None:
    torch.manual_seed(recipe.seed)
    tokenizer = AutoTokenizer.from_pretrained(out / "target")
    model = pretrain.new_target(len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id, MAX_LENGTH).to(device)
    told = pretrain.train(model, documents(out, "train"), documents(out, "prompt")[:200], recipe)
    told["parameters"] = sum(p.numel() for p in model.parameters())
    told["heldout_perplexity"] = round(math.exp(pretrain.mean_loss(model, documents(out, "heldout"), 2**14)), 3)
    model.generation_config.update(do_sample=False, eos_token_id=tokenizer.eos_token_id)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    (out / "target_report.json").write_text(json.dumps(told))
    model.to("cpu", torch.bfloat16).save_pretrained(out / "target")


def make_answers(out: Path, device: str, counts: dict[str, int]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(out / "target")
    # Eager attention: a padded row that sees nothing gives finite numbers there on every device.
    load = {"dtype": torch.float32, "attn_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(out / "target", **load).to(device).eval()
    asked: list[dict[str, Any]] = []
    for split, count in counts.items():
        found = unique_pairs(out, split)
        ids = tokenizer([render(pair.prompt) for pair in found])["input_ids"]
        fits = [(pair, each) for pair, each in zip(found, ids, strict=True) if len(each) <= MAX_PROMPT]
        for pair, each in fits[: int(ASKED * count)]:
            asked.append({"split": split, "task": pair.task, "prompt": pair.prompt, "ids": each})
    batch = 1024 if device == "cuda" else 64
    for row, answer in zip(asked, answering.answer_all(model, [r["ids"] for r in asked], MAX_NEW, batch), strict=True):
        row.update(asdict(answer), text=tokenizer.decode(answer.tokens), repeated=answering.repeated(answer.tokens))
        row["fault"] = fault(row, tokenizer)
        del row["ids"]
    write(out / "answers.jsonl", asked)


def fault(row: dict[str, Any], tokenizer: Any) -> str:
    """Why an answer is not shipped, or ''."""
    text = row["text"]
    checks = {
        "unfinished": not row["finished"],
        "short": len(row["tokens"]) < MIN_NEW,
        "looping": row["repeated"] > answering.MAX_REPEATED,
        "near_tie": not row["margin"] >= answering.MARGIN,
        "not_as_tokenized": text != text.strip() or tokenizer(text)["input_ids"] != row["tokens"],
        "special": any(token in text for token in tokenizer.all_special_tokens),
    }
    return next((name for name, wrong in checks.items() if wrong), "")


def make_assets(out: Path, counts: dict[str, int]) -> None:
    """Writes the two files of data and a report over everything that was asked."""
    rows = read(out / "answers.jsonl")
    good = {
        split: [r for r in rows if r["split"] == split and not r["fault"]][:count] for split, count in counts.items()
    }
    if not all(good.values()):
        raise ConfigError(f"{out}: no answer passed the filters; train the target longer")
    write(out / "heldout.jsonl", ({"turns": [row["prompt"]]} for row in good["heldout"]))
    roles = [
        [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["text"]}]
        for row in good["prompt"]
    ]
    write(out / "train.jsonl", ({"messages": messages} for messages in roles))
    faults = [row["fault"] for row in rows]
    told = {
        **json.loads((out / "target_report.json").read_text()),
        "asked": len(rows),
        "dropped": {name: faults.count(name) for name in sorted(set(faults) - {""})},
        "finished": round(mean(row["finished"] for row in rows), 4),
        "train": len(good["prompt"]),
        "heldout": len(good["heldout"]),
        "answer_tokens": round(mean(len(row["tokens"]) for row in good["prompt"]), 1),
        "repeated_4grams": round(mean(row["repeated"] for row in good["prompt"]), 4),
        "tasks": {t: sum(r["task"] == t for r in good["prompt"]) for t in sorted({r["task"] for r in rows})},
    }
    (out / "report.json").write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told, indent=1))


def stage(path: Path, make: Callable[[], None]) -> None:
    if path.exists():
        print(f"{path}: kept", flush=True)
        return
    began = time.monotonic()
    make()
    print(f"{path}: made in {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dfl_mp.quickstart.build", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=4.0, help="of target training")
    parser.add_argument("--steps", type=int, default=0, help="instead of --minutes: the run is then reproducible")
    parser.add_argument("--device", default="auto", choices=["auto", "cuda", "cpu"])
    parser.add_argument("--batch-tokens", type=int, default=0, help="0: 16384 on CUDA, 1536 on a CPU")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--prompts", type=int, default=6200)
    parser.add_argument("--heldout", type=int, default=150)
    args = parser.parse_args()
    device = ("cuda" if torch.cuda.is_available() else "cpu") if args.device == "auto" else args.device
    batch_tokens = args.batch_tokens or (16384 if device == "cuda" else 1536)
    recipe = pretrain.Recipe(args.minutes, args.steps, batch_tokens, args.lr)
    out, counts = args.out, {"prompt": args.prompts, "heldout": args.heldout}
    out.mkdir(parents=True, exist_ok=True)
    stage(out / "corpus.jsonl", partial(make_corpus, out))
    stage(out / "target" / "tokenizer.json", partial(make_tokenizer, out))
    stage(out / "target" / "model.safetensors", partial(make_target, out, device, recipe))
    stage(out / "answers.jsonl", partial(make_answers, out, device, counts))
    stage(out / "report.json", partial(make_assets, out, counts))


if __name__ == "__main__":
    main()
