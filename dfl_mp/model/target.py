"""The frozen target as a producer of features: the residual stream after chosen decoder layers.

Legend: B rows · S tokens in a row · D documents · F layers used · H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dfl_mp.config import TargetConfig
from dfl_mp.errors import ConfigError
from dfl_mp.model.target_load import load_decoder
from dfl_mp.specs import TargetSpec

MASKED_KINDS = {"full_attention", "sliding_attention", "chunked_attention"}
"""Layer types that only a mask connects; the others carry a state along the row, across documents."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 5e-2}


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

    `packed` says how documents of a row are kept apart: by the model's own packed-row masks (True), or each document as
    a row of its own (False: layers with a recurrent state, and models whose masks do not know packed rows). It is
    proved when the model is loaded, by comparing features of a packed row with those of each document alone.
    """

    def __init__(self, decoder: nn.Module, capture: Capture, spec: TargetSpec, packed: bool) -> None:
        self.decoder, self.capture, self.spec, self.packed = decoder, capture, spec, packed
        weight = decoder.get_input_embeddings().weight
        self.device, self.dtype = weight.device, weight.dtype
        self.width = len(spec.layer_ids) * spec.hidden_size

    @torch.no_grad()
    def features(
        self, tokens_BS: Tensor, position_BS: Tensor, document_BS: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """Features [B, S, F*H] of packed rows, written into `out` if given; no document sees another.

        `position_BS` counts from 0 in each document; `document_BS` numbers the documents of a row, -1 is padding, whose
        features are finite and mean nothing.
        """
        if out is None:
            out = torch.empty(*tokens_BS.shape, self.width, dtype=self.dtype, device=self.device)
        if self.packed:
            # Padding is one-token documents: transformers starts a document where positions do not go up by one.
            self._forward(tokens_BS, torch.where(document_BS >= 0, position_BS, 0), out)
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
    in a row of its own, are not the hidden states that it reports itself.
    """
    decoder, layers = load_decoder(spec, config, device)
    kinds = getattr(decoder.config.get_text_config(decoder=True), "layer_types", None) or ()
    capture = Capture(layers, spec.layer_ids, spec.hidden_size)
    if set(kinds) <= MASKED_KINDS:
        target = FeatureTarget(decoder, capture, spec, packed=True)
        if _proved(target):
            return target
    target = FeatureTarget(decoder, capture, spec, packed=False)
    if not _proved(target):
        raise ConfigError(f"target.path: {spec.path}: features of {spec.architecture} differ from its hidden states")
    return target


@torch.no_grad()
def _proved(target: FeatureTarget) -> bool:
    """Whether features of packed documents equal the hidden states of each document alone."""
    lengths = (9, 1, 14, 5)
    document_1S = torch.repeat_interleave(torch.tensor([0, 1, 2, -1]), torch.tensor(lengths))[None].to(target.device)
    position_1S = torch.cat([torch.arange(n) for n in lengths])[None].to(target.device)
    tokens_1S = torch.randint(
        min(target.spec.vocab_size, 1000), document_1S.shape, generator=torch.Generator().manual_seed(0)
    ).to(target.device)
    found = target.features(tokens_1S, position_1S, document_1S)
    worst = 0.0
    for document in range(3):
        mine = document_1S[0] == document
        alone = target.decoder(input_ids=tokens_1S[:, mine], use_cache=False, output_hidden_states=True).hidden_states
        expected = torch.cat([alone[i + 1] for i in target.spec.layer_ids], dim=-1)[0].double()
        error = (found[0, mine].double() - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-12)
        # The median: in low precision a router that flips at a tie changes single tokens.
        worst = max(worst, error.median().item() if torch.isfinite(error).all() else float("inf"))
    return worst < TOLERANCE[target.dtype]


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
