"""Data file and tokenizer -> a folder of packs and prompts, made once and found again by the hash of all that matters.

Legend: D documents, S tokens in a row, N anchor slots in a row, R rows in a pack, G packs in a step.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from dfl_mp.config import Config
from dfl_mp.data.anchors import eligible_positions
from dfl_mp.data.cache import hash_file, key_of, staged
from dfl_mp.data.conversations import Conversation, read_conversations
from dfl_mp.data.fill import ENOUGH, fuller_row
from dfl_mp.data.mask_token import choose_mask_token
from dfl_mp.data.packing import Rows, choose_slots, pack_epoch, plan_rows
from dfl_mp.data.packs import FORMAT, PackShape, PackStore
from dfl_mp.data.prompts import Prompt, read_prompts, write_prompts
from dfl_mp.data.report import Progress, Report
from dfl_mp.data.summary import anchor_counts, token_counts
from dfl_mp.data.tokenize import ChatTokenizer, Document, Tally, tokenize
from dfl_mp.errors import CheckpointError, ConfigError
from dfl_mp.inputs import find_file
from dfl_mp.specs import Sources, TargetSpec
from dfl_mp.words import plural

SUMMARY = "summary.json"
RULES = 2
"""By which rows are laid out; a folder made by other rules is not found again."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class PreparedData:
    """The folder of packs and prompts, and what a run needs to know of it."""

    folder: Path
    shape: PackShape
    num_steps: int
    mask_token_id: int
    num_prompts: int
    report: dict[str, Any]
    packs: str
    """Digest of all packs."""
    sources: Sources


def prepare_data(config: Config, target: TargetSpec, tokenizer: Any, say: Say) -> PreparedData:
    """Make the run's data under `data.cache_dir`, or find it there made before; `say` gets lines for people.

    Raises ConfigError naming the field, row or file that is wrong.
    """
    chat = ChatTokenizer(tokenizer)
    sources = Sources(
        data=hash_file(find_file(config.data.path, "data.path", "train.jsonl")),
        tokenizer=chat.fingerprint(),
        transformers=transformers.__version__,
    )
    folder = Path(config.data.cache_dir).expanduser().resolve() / _key(config, target, sources)
    if folder.is_dir():
        try:
            found = _load(folder, sources)
        except CheckpointError as error:
            say(f"data: made anew, the folder in the cache is damaged: {error}")
            shutil.rmtree(folder)
        else:
            say(f"data: found in the cache, {folder}")
            return found
    with staged(folder) as stage:
        _make(config, target, (tokenizer, chat), (stage, say))
    say(f"data: written to {folder}")
    return _load(folder, sources)


def _key(config: Config, target: TargetSpec, sources: Sources) -> str:
    prompts = config.data.prompts
    return key_of(
        {
            "format": [FORMAT, RULES],
            "sources": sources.model_dump(),
            "prompts": prompts and hash_file(find_file(prompts, "data.prompts", "heldout.jsonl")),
            "target": target.model_dump(include={"path", "vocab_size", "eos_token_ids", "max_position_embeddings"}),
            "section": config.data.model_dump(exclude={"cache_dir"}),
            "drafter": [config.drafter.block_size, config.drafter.mask_token_id],
            "train": config.train.model_dump(include={"seed", "max_steps", "epochs", "packs_per_step"}),
            "eval": [config.eval.num_prompts, config.eval.max_new_tokens],
        }
    )


def _load(folder: Path, sources: Sources) -> PreparedData:
    store = PackStore.open(folder)
    try:
        summary = json.loads((folder / SUMMARY).read_text())
        return PreparedData(folder=folder, shape=store.shape, sources=sources, **summary)
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{folder / SUMMARY}: cannot be read: {error}") from None


def _make(config: Config, target: TargetSpec, tokenizers: tuple[Any, ChatTokenizer], out: tuple[Path, Say]) -> None:
    (tokenizer, chat), (stage, say) = tokenizers, out
    conversations, read = read_conversations(config.data.path, config.data.max_documents)
    prompts: list[Prompt] = []
    prompt_report = Report()
    if config.data.prompts is not None:
        trained_on = {conversation.first_user_turn for conversation in conversations}
        room = target.max_position_embeddings - config.eval.max_new_tokens
        if room <= 0:
            raise ConfigError(
                f"eval.max_new_tokens: {config.eval.max_new_tokens} leave no room for a prompt in the "
                f"{target.max_position_embeddings} positions of the target"
            )
        prompts, prompt_report = read_prompts(config.data.prompts, chat, trained_on, config.eval.num_prompts, room)
    most_tokens = min(config.data.row_tokens, target.max_position_embeddings)
    progress = Progress("tokenising", len(conversations), config.run.progress_every_s, say)
    tally = Tally(read)
    documents = _tokenize_all(conversations, chat, most_tokens, tally, progress)
    mask_token_id, why = _mask_token(config, target, tokenizer, documents)
    rows, shape, eligible_D = _plan(config, documents)
    packs = PackStore.write(stage, documents, rows, shape)
    write_prompts(stage, prompts)
    num_steps = shape.num_packs // config.train.packs_per_step
    report = {
        "path": config.data.path,
        "rows": read.as_dict(),
        **token_counts(documents, tally),
        **anchor_counts(rows, shape, eligible_D, config.data.max_anchors_per_document),
        **_fill(rows, documents, shape),
        "steps": num_steps,
        "mask_token": f"{mask_token_id}: {why}",
        "prompts": prompt_report.as_dict(),
    }
    summary = {
        "num_steps": num_steps,
        "mask_token_id": mask_token_id,
        "num_prompts": len(prompts),
        "report": report,
        "packs": packs,
    }
    (stage / SUMMARY).write_text(json.dumps(summary, indent=1))


def _tokenize_all(
    conversations: list[Conversation], chat: ChatTokenizer, most_tokens: int, tally: Tally, progress: Progress
) -> list[Document]:
    documents = []
    for done, document in enumerate(tokenize(conversations, chat, most_tokens, tally), 1):
        if document is not None:
            documents.append(document)
        progress.update(done)
    if not documents:
        raise ConfigError(f"data.path: nothing to train on in {tally.report.lines} rows; {tally.report.first[0]}")
    tally.report.kept = len(documents)
    return documents


def _mask_token(config: Config, target: TargetSpec, tokenizer: Any, documents: list[Document]) -> tuple[int, str]:
    used = {int(token) for token in np.unique(np.concatenate([document.tokens for document in documents]))}
    if max(used) >= target.vocab_size:
        raise ConfigError(
            f"target.path: its tokenizer makes token {max(used)}, but its embedding has {target.vocab_size} rows"
        )
    return choose_mask_token(config.drafter.mask_token_id, None, tokenizer, target, used)


def _plan(config: Config, documents: list[Document]) -> tuple[Rows, PackShape, np.ndarray]:
    """The stream of rows of the run, the shape of its packs, and eligible positions of each document [D]."""
    data, train = config.data, config.train
    lengths_D = np.array([len(document.tokens) for document in documents], np.int64)
    eligible_D = np.array([len(eligible_positions(document.loss_mask)) for document in documents], np.int64)
    wanted_D = np.minimum(eligible_D, data.max_anchors_per_document)
    slots = data.anchors_per_row
    if slots is None:
        unbounded = pack_epoch(lengths_D, data.row_tokens, len(documents), (train.seed, 0))
        slots = choose_slots(wanted_D, unbounded, config.drafter.block_size)
    rows_per_step = data.rows_per_pack * train.packs_per_step
    most_rows = None if train.max_steps is None else train.max_steps * rows_per_step
    rows = plan_rows(lengths_D, wanted_D, data.row_tokens, slots, (train.seed, most_rows, train.epochs))
    steps = len(rows) // rows_per_step
    if not steps:
        raise ConfigError(
            f"data.path: {plural(len(documents), 'document')} make {plural(len(rows), 'row')} of "
            f"{data.row_tokens} tokens in {plural(train.epochs, 'epoch')}, one step takes {rows_per_step} "
            "(data.rows_per_pack x train.packs_per_step)"
        )
    rows = rows.first(steps * rows_per_step)
    shape = PackShape(train.seed, data.row_tokens, data.rows_per_pack, slots, steps * train.packs_per_step)
    return rows, shape, eligible_D


def _fill(rows: Rows, documents: list[Document], shape: PackShape) -> dict[str, Any]:
    """Share of the rows' tokens that are not padding, and a longer row that would be fuller if that is too little."""
    lengths = np.array([len(document.tokens) for document in documents], np.int64)
    fill = float(lengths[rows.documents].sum() / (len(rows) * shape.row_tokens))
    return {"fill": fill, "fuller_row": fuller_row(lengths, shape.row_tokens) if fill < ENOUGH else None}
