"""The whole target with a key/value cache, for real decoding: prefill, one-token steps, verification of a block.

Legend: K tokens fed at once · V vocabulary · F layers used · H hidden size. One response at a time (B = 1).
"""

from __future__ import annotations

import copy
import inspect

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from dfl_mp.config import TargetConfig
from dfl_mp.model.shapes import FrozenEnds
from dfl_mp.model.target import Capture
from dfl_mp.model.target_load import decoder_and_layers, ends_of, load_causal_model
from dfl_mp.model.target_proof import MASKED_KINDS
from dfl_mp.specs import TargetSpec


class TargetCache:
    """What the target remembers of one response. Every `forward` must be followed by a `crop`, even to its full length.

    Sliding layers keep what a crop may bring back until that crop. A recurrent state cannot be cropped: for those that
    have one, the cache of before the last forward is kept, and the tokens that stay are fed again.
    """

    def __init__(self, model: PreTrainedModel, recurrent: bool) -> None:
        self.inner = DynamicCache(config=model.config)
        if not recurrent:
            self.inner.activate_past_recording()
        self.length = 0
        self.recurrent = recurrent
        self.before: DynamicCache | None = None
        self.pending_K: Tensor | None = None


class FullTarget:
    """The unmodified target; `forward` gives logits and features, `crop` takes refused tokens back."""

    def __init__(self, model: PreTrainedModel, spec: TargetSpec) -> None:
        self.model, self.spec = model, spec
        self.device, self.dtype = model.device, model.dtype
        text = model.config.get_text_config(decoder=True)
        self.recurrent = not set(getattr(text, "layer_types", None) or ()) <= MASKED_KINDS
        _, _, layers = decoder_and_layers(model, spec.num_layers, spec.path)
        self.capture = Capture(layers, spec.layer_ids, spec.hidden_size)
        self.last_only = "logits_to_keep" in inspect.signature(model.forward).parameters

    def new_cache(self) -> TargetCache:
        return TargetCache(self.model, self.recurrent)

    @torch.no_grad()
    def forward(self, tokens_K: Tensor, cache: TargetCache, last: bool = False) -> tuple[Tensor, Tensor]:
        """Feed K tokens behind what is cached → logits [K, V] ([1, V] of the last, if `last`), features [K, F*H]."""
        features_KF = torch.empty(
            1, len(tokens_K), len(self.spec.layer_ids) * self.spec.hidden_size, dtype=self.dtype, device=self.device
        )
        if self.recurrent:
            cache.before, cache.pending_K = copy.deepcopy(cache.inner), tokens_K
        position_1K = torch.arange(cache.length, cache.length + len(tokens_K), device=self.device)[None]
        self.capture.sink = features_KF
        try:
            logits = self.model(
                input_ids=tokens_K[None],
                position_ids=position_1K,
                past_key_values=cache.inner,
                use_cache=True,
                **({"logits_to_keep": 1} if last and self.last_only else {}),
            ).logits[0]
        finally:
            self.capture.sink = None
        cache.length += len(tokens_K)
        return logits[-1:] if last else logits, features_KF[0]

    def crop(self, cache: TargetCache, length: int) -> None:
        """Forget the tokens from `length` on; they must be of the last forward."""
        surplus = cache.length - length
        if not self.recurrent:
            cache.inner.crop(-surplus)
            cache.length = length
        elif surplus:
            kept_K = cache.pending_K[: len(cache.pending_K) - surplus]
            cache.inner, cache.length = cache.before, length - len(kept_K)
            for token in kept_K:
                self.forward(token[None], cache, last=True)

    def ends(self) -> FrozenEnds:
        """The target's embedding and head, sharing its memory."""
        return ends_of(self.model, self.spec, self.device)


def load_full_target(spec: TargetSpec, config: TargetConfig, device: torch.device | str) -> FullTarget:
    """The whole target on `device`, frozen. Raises ConfigError naming `target.path`."""
    return FullTarget(load_causal_model(spec, config, device), spec)
