"""SpecForge's own DFlash training model and optimizer on the same work, as its PyPI package `specforge` 0.2.0 has them.

Installed without its dependencies (`pip install --no-deps specforge==0.2.0`), used as it is: bfloat16 weights, float32
masters in its `BF16Optimizer`, flex attention. Legend: `dfl_mp/model/shapes.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import Qwen3Config

from benchmarks.shapes import VOCAB, drafter_spec
from dfl_mp.model.shapes import PackTensors


class SpecForgeStep:
    """`accumulate` is forward and backward of one pack, `apply` the optimizer step. Raises ImportError without it."""

    def __init__(self, size: str, anchors: int, device: torch.device) -> None:
        from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel
        from specforge.modeling.draft.dflash import DFlashDraftModel
        from specforge.optimizer import BF16Optimizer

        spec, vocab = drafter_spec(size), VOCAB[size]
        config = Qwen3Config(
            vocab_size=vocab,
            hidden_size=spec.hidden_size,
            intermediate_size=spec.intermediate_size,
            num_hidden_layers=spec.num_layers,
            num_attention_heads=spec.num_attention_heads,
            num_key_value_heads=spec.num_key_value_heads,
            head_dim=spec.head_dim,
            rms_norm_eps=spec.rms_norm_eps,
            rope_parameters=dict(spec.rope_parameters),
            max_position_embeddings=spec.max_position_embeddings,
            layer_types=list(spec.layer_types),
        )
        config.block_size, config.num_target_layers = spec.block_size, 36
        config.dflash_config = {"target_layer_ids": list(range(1, 1 + spec.num_features))}
        config._attn_implementation = "flex_attention"
        with device:
            head = nn.Linear(spec.hidden_size, vocab, bias=False, dtype=torch.bfloat16).requires_grad_(False)
            embed = nn.Embedding(vocab, spec.hidden_size, dtype=torch.bfloat16).requires_grad_(False)
            draft = DFlashDraftModel(config).to(torch.bfloat16)
            self.model = OnlineDFlashModel(
                draft, head, embed, spec.mask_token_id, spec.block_size, num_anchors=anchors, loss_decay_gamma=7.0
            )
        self.model.train()
        self.optimizer = BF16Optimizer(draft, lr=6e-4, max_grad_norm=1.0, total_steps=1000)

    def accumulate(self, features_BSF: Tensor, pack: PackTensors) -> Tensor:
        """The loss, whose gradients are in the model's parameters; nothing is waited for here."""
        loss, _, _ = self.model(pack.tokens_BS, features_BSF, pack.loss_mask_BS.float())
        loss.backward()
        return loss.detach()

    def apply(self) -> None:
        self.optimizer.step()
