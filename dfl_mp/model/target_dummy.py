"""Random weights for a target of which only `config.json` is there (`target.load_format=dummy`), to measure speed.

A matrix depends on its name in the model and on the kind of device alone: a truncated target, the whole one and the
ends that a drafter borrows agree. Legend: V vocabulary · H hidden size.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STD = 0.02
"""Of every matrix; vectors (norms, biases) are as the model's class initializes them."""


@torch.no_grad()
def fill(module: PreTrainedModel, device: torch.device | str, prefix: str = "") -> None:
    """Give a module made on `meta` its memory and its weights directly on `device`.

    `prefix` is the module's dotted name in the causal model, with a dot at its end.
    """
    module.to_empty(device=device)
    for part in module.modules():
        part._is_hf_initialized = False
    kept = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=kept):
        module.initialize_weights()
    module.tie_weights()
    for name, weight in module.named_parameters():
        if weight.ndim > 1:
            _randomize(weight, prefix + name)


def random_table(name: str, shape: tuple[int, int], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """The matrix [V, H] that `fill` would write under this name."""
    return _randomize(torch.empty(shape, dtype=dtype, device=device), name)


def dotted_prefix(model: nn.Module, part: nn.Module) -> str:
    """The name of a part of the model, with a dot at its end; empty for the model itself."""
    name = next(name for name, module in model.named_modules() if module is part)
    return f"{name}." if name else ""


def _randomize(weight: Tensor, name: str) -> Tensor:
    generator = torch.Generator(weight.device).manual_seed(zlib.crc32(name.encode()))
    return weight.normal_(0.0, STD, generator=generator)
