"""The frozen target as a producer of features: the residual stream after chosen decoder layers.

Legend: B rows · S tokens in a row · D documents · F layers used · H hidden size.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dfl_mp.config import TargetConfig
from dfl_mp.errors import ConfigError
from dfl_mp.model.float8 import require
from dfl_mp.model.target_attention import ATTENTION, KERNELS, Documents, within
from dfl_mp.model.target_float8 import quantize
from dfl_mp.model.target_load import load_decoder
from dfl_mp.model.target_proof import LENGTHS, TOLERANCE, hidden_states_alone, made_up_pack, median_error, why_not
from dfl_mp.specs import TargetSpec

Way = Literal["varlen", "flex", "masks", "alone"]
WORST_FLOAT8 = 0.5
"""Relative error of features at which float8 is taken for broken; layers of random weights are off by 0.1 to 0.2."""


class Capture:
    """Forward hooks that copy the output of chosen layers into columns of `sink`, [..., F*H]."""

    def __init__(self, layers: nn.ModuleList, layer_ids: tuple[int, ...], hidden_size: int) -> None:
        self.sink: Tensor | None = None
        for index, layer_id in enumerate(layer_ids):
            columns = slice(index * hidden_size, (index + 1) * hidden_size)
            layers[layer_id].register_forward_hook(self._hook(columns))

    def _hook(self, columns: slice):
        def copy(module: nn.Module, args: tuple, output: Tensor | tuple) -> None:
            if self.sink is not None:
                self.sink[..., columns].copy_(output if isinstance(output, Tensor) else output[0])

        return copy


class FeatureTarget:
    """A truncated target: embedding and decoder layers up to the last one captured, no final norm, no head.

    `way` says how documents of a row are kept apart: by a kernel of `target_attention` ("varlen", "flex"), by the
    model's own packed-row masks ("masks"), or each document as a row of its own ("alone": for layers with a state, and
    models whose masks do not know packed rows). It is proved when the model is loaded, by comparing features of a
    packed row with those of each document alone. `notes` says what was not possible and why, for people.
    """

    def __init__(self, decoder: PreTrainedModel, layers: nn.ModuleList, spec: TargetSpec) -> None:
        self.decoder, self.layers, self.spec = decoder, layers, spec
        self.capture = Capture(layers, spec.layer_ids, spec.hidden_size)
        weight = decoder.get_input_embeddings().weight
        self.device, self.dtype = weight.device, weight.dtype
        self.width = len(spec.layer_ids) * spec.hidden_size
        self.tolerance = TOLERANCE[self.dtype]
        """Relative error that another order of the same operations may make."""
        self.way: Way = "alone"
        self.plain = decoder.config._attn_implementation
        self.notes: list[str] = []
        self.windows: list[int] = []
        """What the layers asked a kernel for in the last forward, see `Documents`."""

    @property
    def packed(self) -> bool:
        """Whether documents of a row are computed together."""
        return self.way != "alone"

    def use(self, way: Way) -> None:
        """Keep documents apart in this way from now on; not proved here."""
        self.way = way
        self.decoder.set_attn_implementation(ATTENTION if way in KERNELS else self.plain)

    @torch.no_grad()
    def features(
        self, tokens_BS: Tensor, position_BS: Tensor, document_BS: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """Features [B, S, F*H] of packed rows, written into `out` if given; no document sees another.

        `position_BS` counts from 0 in each document; `document_BS` numbers the documents of a row, -1 is padding, whose
        features are finite and mean nothing. Inputs may be on the host: pinned ones on the host make a call that waits
        for nothing when `way` is a kernel.
        """
        if out is None:
            out = torch.empty(*tokens_BS.shape, self.width, dtype=self.dtype, device=self.device)
        tokens_BS, position_BS = (x.to(self.device, non_blocking=True) for x in (tokens_BS, position_BS))
        if self.way in KERNELS:
            with within(Documents(document_BS, self.device, self.way)) as now:
                self._forward(tokens_BS, position_BS, out)
            self.windows = now.windows
        elif self.way == "masks":
            # Padding is one-token documents: transformers starts a document where positions do not go up by one.
            self._forward(tokens_BS, torch.where(document_BS.to(self.device) >= 0, position_BS, 0), out)
        else:
            self._forward_alone(tokens_BS, document_BS, out)
        return out

    def _forward(self, tokens_BS: Tensor, position_BS: Tensor, sink: Tensor) -> None:
        self.capture.sink = sink
        try:
            self.decoder(input_ids=tokens_BS, position_ids=position_BS, use_cache=False)
        finally:
            self.capture.sink = None

    def _forward_alone(self, tokens_BS: Tensor, document_BS: Tensor, out: Tensor) -> None:
        """Each document as a row of its own, padded on the right; at most as many tokens at once as the pack has."""
        out.zero_()
        for group in _groups(document_BS, budget=document_BS.numel()):
            longest = max(end - start for _, start, end in group)
            tokens_DL = tokens_BS.new_zeros(len(group), longest)
            for i, (row, start, end) in enumerate(group):
                tokens_DL[i, : end - start] = tokens_BS[row, start:end]
            position_DL = torch.arange(longest, device=self.device).expand(len(group), -1)
            sink = torch.empty(*tokens_DL.shape, self.width, dtype=out.dtype, device=self.device)
            self._forward(tokens_DL, position_DL, sink)
            for i, (row, start, end) in enumerate(group):
                out[row, start:end] = sink[i, : end - start]


def load_feature_target(spec: TargetSpec, config: TargetConfig, device: torch.device | str) -> FeatureTarget:
    """Load the target, drop what features do not need, and prove on a small packed row that the features are right.

    Raises ConfigError naming `target.path` when it cannot be loaded, or when its layers' outputs, with every document
    in a row of its own, are not the hidden states that it reports itself; `target.attention` when the kernel asked for
    does not work with it; `target.float8` where there is none.
    """
    if config.float8:
        require("target.float8", torch.device(device), getattr(torch, config.dtype))
    target = FeatureTarget(*load_decoder(spec, config, device), spec)
    _choose_way(target, config.attention)
    if config.float8:
        use_float8(target)
    return target


def _choose_way(target: FeatureTarget, attention: str) -> None:
    spec, expected = target.spec, hidden_states_alone(target)
    for way in _candidates(attention, target.device):
        why = why_not(target, way, expected)
        if why is None:
            return
        if way == attention:
            raise ConfigError(f"target.attention: {way} does not work with {spec.path}: {why}")
        target.notes.append(f"not {way}: {why}")
    raise ConfigError(f"target.path: {spec.path}: features of {spec.architecture} differ from its hidden states")


def use_float8(target: FeatureTarget) -> None:
    """Linear layers in float8 from now on; what that does to features of random tokens is noted.

    Raises ConfigError naming `target.float8` when they are no longer the target's.
    """
    pack = made_up_pack(1, LENGTHS, target.spec.vocab_size)
    before = target.features(*pack)
    quantize(target.layers)
    error = median_error(target.features(*pack), before)
    if error > WORST_FLOAT8:
        raise ConfigError(f"target.float8: features of {target.spec.path} are off by {error:.0%} of their size")
    target.notes.append(f"float8 moves features of random tokens by {error:.1%} of their size")
    target.tolerance = max(WORST_FLOAT8 / 4, error)  # two ways of rounding may differ by both their errors


def _candidates(attention: str, device: torch.device) -> tuple[Way, ...]:
    if attention in KERNELS:
        return (attention,)
    return ("varlen", "masks", "alone") if attention == "auto" and device.type == "cuda" else ("masks", "alone")


def _groups(document_BS: Tensor, budget: int) -> list[list[tuple[int, int, int]]]:
    """Documents as (row, start, end), longest first, in groups of at most `budget` padded tokens."""
    spans: list[tuple[int, int, int]] = []
    for row, documents in enumerate(document_BS.tolist()):
        start = 0
        for i in range(1, len(documents) + 1):
            if i == len(documents) or documents[i] != documents[start]:
                if documents[start] >= 0:
                    spans.append((row, start, i))
                start = i
    groups: list[list[tuple[int, int, int]]] = []
    for span in sorted(spans, key=lambda s: s[1] - s[2]):
        longest = groups[-1][0][2] - groups[-1][0][1] if groups else 0
        if groups and (len(groups[-1]) + 1) * longest <= budget:
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups
