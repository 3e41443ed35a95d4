"""What a pack gives the drafter: blocks, masks, embeddings. On CUDA one graph launch instead of some hundred kernels.

Legend of shape suffixes: `dfl_mp/model/shapes.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import NamedTuple

import torch
from torch import Tensor

from dfl_mp.model.blocks import make_blocks
from dfl_mp.model.mask import make_masks
from dfl_mp.model.shapes import Blocks, FrozenEnds, Masks, PackTensors
from dfl_mp.specs import DrafterSpec


class Inputs(NamedTuple):
    blocks: Blocks
    masks: Masks
    embeds_BMH: Tensor
    positions_BM: Tensor


def input_maker(spec: DrafterSpec, ends: FrozenEnds, gamma: float, attention: str) -> Callable[[PackTensors], Inputs]:
    def make(pack: PackTensors) -> Inputs:
        blocks = make_blocks(pack, spec.block_size, spec.mask_token_id, gamma)
        masks = make_masks(pack, blocks, spec, attention)
        return Inputs(blocks, masks, ends.embed(blocks.ids_BNK.flatten(1)), blocks.positions_BNK.flatten(1))

    return make


class Captured:
    """`make` as CUDA graphs, one for each shape of pack, captured at its first.

    A result is overwritten by the next call, in the order of the stream.
    """

    def __init__(self, make: Callable[[PackTensors], Inputs]) -> None:
        self._make = make
        self._graphs: dict[tuple[torch.Size, ...], tuple[torch.cuda.CUDAGraph, PackTensors, Inputs]] = {}

    def __call__(self, pack: PackTensors) -> Inputs:
        given = _tensors(pack)
        shapes = tuple(tensor.shape for tensor in given)
        if shapes not in self._graphs:
            self._graphs[shapes] = self._capture(pack)
        graph, held, made = self._graphs[shapes]
        for mine, theirs in zip(_tensors(held), given, strict=True):
            mine.copy_(theirs)
        graph.replay()
        return made

    def _capture(self, pack: PackTensors) -> tuple[torch.cuda.CUDAGraph, PackTensors, Inputs]:
        held = PackTensors(*(tensor.clone() for tensor in _tensors(pack)))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._make(held)  # what is set up once must not be captured
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            made = self._make(held)
        return graph, held, made


def _tensors(pack: PackTensors) -> list[Tensor]:
    return [getattr(pack, field.name) for field in fields(pack)]
