"""What `prepare` resolves once and every worker reads: the target's and the drafter's shapes, and the prepared data.

A leaf: no torch. Written as `prepared.json` into the run folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class EndNames(Spec):
    """What the embedding and the head are called in the target's checkpoint."""

    embed: str
    head: str
    tied: bool
    """They are one table."""


class TargetSpec(Spec):
    """Facts of the target's config that the drafter, the data and the export depend on."""

    path: str
    architecture: str
    hidden_size: int
    """H."""
    num_layers: int
    """T."""
    vocab_size: int
    """V: rows of the embedding table."""
    layer_ids: tuple[int, ...]
    """0-based, strictly increasing; F = len(layer_ids)."""
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any]
    """At least `rope_type` and `rope_theta`, as transformers 5 writes them."""
    max_position_embeddings: int
    embedding_scale: float
    """What the target multiplies its embedding by; 1.0 for most."""
    logit_multiplier: float
    final_logit_softcapping: float | None
    eos_token_ids: tuple[int, ...]
    ends: EndNames | None = None
    """None: to be looked up in the model."""


class Frequencies(Spec):
    """Of rotary positions."""

    inverse: tuple[float, ...]
    """D / 2 of them, float32 values."""
    scale: float
    """The factor on cos and sin."""


class DrafterSpec(Spec):
    """Everything that decides the drafter's tensors and its forward."""

    hidden_size: int
    num_features: int
    num_layers: int
    block_size: int
    mask_token_id: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any]
    max_position_embeddings: int
    layer_types: tuple[str, ...]
    sliding_window: int | None
    is_causal: bool
    """Of sliding layers: causal inside the block."""
    frequencies: Frequencies | None = None
    """What `rope_parameters` come to; None: to be computed from them."""


class Sources(Spec):
    """What the packs are made of, beside the config's fields."""

    data: str
    """Digest of the file `data.path`."""
    tokenizer: str
    """Digest of the target's tokenizer and chat template."""
    transformers: str
    """Version."""


class Prepared(Spec):
    """The result of `prepare`."""

    target: TargetSpec
    drafter: DrafterSpec
    data_dir: str
    """Folder of the memory-mapped packs."""
    num_packs: int
    num_steps: int
    row_tokens: int
    rows_per_pack: int
    anchors_per_row: int
    num_prompts: int
    report: dict[str, Any]
    """What was read, cut, skipped and dropped; for people."""
    packs: str | None = None
    """Digest of all packs; None (here and below): not known."""
    sources: Sources | None = None

    def write(self, path: Path) -> None:
        path.write_text(self.model_dump_json(indent=1))

    @staticmethod
    def read(path: Path) -> Prepared:
        return Prepared.model_validate_json(path.read_text())
