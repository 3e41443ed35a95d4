"""Stage 3: train the target on the ChatML text of the pairs, with the loss on every token.

Legend: B conversations of a batch · S tokens of the longest of them.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM

IGNORE = -100
WARMUP, WEIGHT_DECAY, CLIP = 0.03, 0.1, 1.0


@dataclass(frozen=True)
class Recipe:
    """The run ends after `steps`, or after `minutes` where `steps` is 0; the learning rate follows whichever counts."""

    minutes: float
    steps: int
    batch_tokens: int
    lr: float
    seed: int = 0
    evaluations: int = 8


def new_target(vocab_size: int, pad: int, eos: int, max_length: int) -> Qwen3ForCausalLM:
    """An untrained Qwen3-style model of some 3 million parameters, float32."""
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        pad_token_id=pad,
        eos_token_id=eos,
        bos_token_id=None,
        use_cache=True,
    )
    return Qwen3ForCausalLM(config)


def batches(documents: list[list[int]], batch_tokens: int, rng: random.Random) -> Iterator[torch.Tensor]:
    """Endless `tokens_BS`, padded on the right with IGNORE; documents of like length share a batch."""
    while True:
        order = sorted(range(len(documents)), key=lambda i: (len(documents[i]) + rng.uniform(-6, 6), i))
        made, batch, longest = [], [], 0
        for i in order:
            longest = max(longest, len(documents[i]))
            if batch and longest * (len(batch) + 1) > batch_tokens:
                made.append(batch)
                batch, longest = [], len(documents[i])
            batch.append(i)
        made.append(batch)
        rng.shuffle(made)
        for batch in made:
            yield padded([documents[i] for i in batch])


def padded(rows: list[list[int]]) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [IGNORE] * (width - len(row)) for row in rows])


def loss_of(model: Qwen3ForCausalLM, tokens_BS: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Cross-entropy of every next token. Padding is on the right, so causal attention alone hides it."""
    cuda = tokens_BS.is_cuda
    with torch.autocast("cuda", torch.bfloat16) if cuda else contextlib.nullcontext():
        logits_BSV = model(input_ids=tokens_BS.clamp(min=0), use_cache=False).logits
    labels = tokens_BS[:, 1:].reshape(-1)
    return F.cross_entropy(logits_BSV[:, :-1].float().flatten(0, 1), labels, ignore_index=IGNORE, reduction=reduction)


@torch.no_grad()
def mean_loss(model: Qwen3ForCausalLM, documents: list[list[int]], batch_tokens: int) -> float:
    """Nats a token over all documents."""
    device, total, count, size = next(model.parameters()).device, 0.0, 0, max(1, batch_tokens // 256)
    ordered = sorted(documents, key=len)
    model.eval()
    for start in range(0, len(ordered), size):
        tokens_BS = padded(ordered[start : start + size]).to(device)
        total += float(loss_of(model, tokens_BS, "sum"))
        count += int((tokens_BS[:, 1:] != IGNORE).sum())
    model.train()
    return total / count


def rate(done: float) -> float:
    """Warm-up, then cosine to 2 %, over the share of the run that is done."""
    return done / WARMUP if done < WARMUP else 0.02 + 0.49 * (1 + math.cos(math.pi * (done - WARMUP) / (1 - WARMUP)))


def train(
    model: Qwen3ForCausalLM, documents: list[list[int]], held: list[list[int]], recipe: Recipe
) -> dict[str, float]:
    """Train in place and leave the weights with the lowest loss on `held`, rounded to bfloat16.

    `held` must not contain what the drafter's evaluation uses, since the choice of weights looks at it.
    """
    device = next(model.parameters()).device
    decayed = [p for p in model.parameters() if p.ndim > 1]
    groups = [
        {"params": decayed, "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.95), fused=device.type == "cuda")
    began, step, done, best, best_state, next_look = time.monotonic(), 0, 0.0, math.inf, model.state_dict(), 0.5
    tokens = 0
    source = batches(documents, recipe.batch_tokens, random.Random(recipe.seed))
    while done < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * rate(max(done, 1e-4))
        tokens_BS = next(source).to(device, non_blocking=True)
        loss = loss_of(model, tokens_BS)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        step, tokens = step + 1, tokens + tokens_BS.numel()
        spent = time.monotonic() - began
        done = step / recipe.steps if recipe.steps else spent / (60 * recipe.minutes)
        if done >= min(next_look, 1.0):
            now = mean_loss(model, held, recipe.batch_tokens)
            print(f"step {step} {spent:.0f}s tokens {tokens} loss {loss.item():.3f} held {now:.3f}", flush=True)
            next_look += 0.5 / recipe.evaluations
            if now < best:
                best, best_state = now, {k: v.detach().clone() for k, v in model.state_dict().items()}
    model.load_state_dict(best_state)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return {"steps": step, "tokens": tokens, "seconds": round(spent, 1), "selection_loss": round(best, 4)}
