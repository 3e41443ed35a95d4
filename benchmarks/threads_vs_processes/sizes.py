"""Drafters, packs and features of the sizes that are compared. Legend of shape suffixes: `dfl_mp/model/shapes.py`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.shapes import LOSS, OPTIM, VOCAB, drafter_spec, random_pack
from dfl_mp.model.drafter import new_drafter
from dfl_mp.model.shapes import FrozenEnds, PackTensors
from dfl_mp.specs import DrafterSpec
from dfl_mp.train.step import StepSettings, TrainStep

NUM_PACKS = 4
NUM_STEPS = 100_000
"""Of the learning rate's schedule; no cell gets that far."""


@dataclass(frozen=True)
class Size:
    spec: DrafterSpec
    vocab: int
    tokens: int
    anchors: int
    start_s: float
    """For import, first compile and warm-up, beside the starts of other cells."""
    turn_s: float
    """For the steps that are timed, three drafters on one GPU included."""

    @property
    def varying(self) -> tuple[int, int]:
        """Row lengths that take turns where lengths vary."""
        return self.tokens, self.tokens // 2


def _spec(vocab: int, num_layers: int, **changes: int) -> DrafterSpec:
    kinds = {"num_layers": num_layers, "layer_types": ("full_attention",) * num_layers}
    return DrafterSpec(
        **drafter_spec("tiny").model_dump() | kinds | {"num_features": 2, "mask_token_id": vocab - 1} | changes
    )


_SMALL = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 4}
SIZES = {
    "tiny": Size(_spec(512, 1, hidden_size=128, intermediate_size=256, block_size=8), 512, 256, 16, 120, 60),
    "small": Size(_spec(8192, 2, **_SMALL), 8192, 1024, 64, 120, 30),
    "qwen3_8b": Size(drafter_spec("qwen3_8b"), VOCAB["qwen3_8b"], 2048, 512, 110, 60),
}


def make_step(size: Size, device: torch.device) -> TrainStep:
    """The product's step with weights of seed 0: the same in every drafter of every cell."""
    g = torch.Generator(device).manual_seed(0)
    shape = (size.vocab, size.spec.hidden_size)
    ends = FrozenEnds(*(torch.randn(shape, device=device, generator=g).mul_(0.02) for _ in range(2)))
    dtype = "bfloat16" if device.type == "cuda" else "float32"
    attention = "flex" if device.type == "cuda" else "dense"
    settings = StepSettings(
        optim=OPTIM, loss=LOSS, dtype=dtype, attention=attention, packs_per_step=1, num_steps=NUM_STEPS
    )
    step = TrainStep(new_drafter(size.spec, device), ends, settings)
    step.reset(0)
    return step


def make_inputs(size: Size, lengths: str, device: torch.device) -> list[tuple[Tensor, PackTensors]]:
    """Features [1, S, F] and packs of one row, used in turn; the same for every drafter."""
    rows = size.varying if lengths == "varying" else (size.tokens,) * NUM_PACKS
    g = torch.Generator(device).manual_seed(1)
    width = size.spec.num_features * size.spec.hidden_size
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    features_BSF = torch.randn(1, size.tokens, width, device=device, generator=g).to(dtype)
    packs = [random_pack(1, n, size.anchors, size.vocab - 1, documents=4, seed=i) for i, n in enumerate(rows)]
    return [(features_BSF[:, :n].contiguous(), pack.to(device)) for n, pack in zip(rows, packs, strict=True)]
