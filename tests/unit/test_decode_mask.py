"""The logits of the training mask are the logits of the decode loop on the same prefix (float64)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dfl_mp.model.blocks import make_blocks
from dfl_mp.model.drafter import Drafter, DrafterCache
from dfl_mp.model.mask import make_masks
from dfl_mp.model.shapes import PackTensors
from dfl_mp.model.target import load_feature_target
from dfl_mp.model.target_full import load_full_target
from dfl_mp.model.target_spec import describe_target, drafter_spec
from tests.unit.test_target_features import pack as random_rows
from tests.unit.test_target_spec import drafter_config
from tests.unit.tiny_targets import VOCAB, save_tiny, target_config

torch.set_num_threads(1)
K = 4
SLIDING = {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 5}


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
@pytest.mark.parametrize("fields", [{}, SLIDING, {**SLIDING, "is_causal": False}])
@torch.no_grad()
def test_training_and_decoding_see_the_same(tmp_path: Path, family: str, fields: dict) -> None:
    config = target_config(save_tiny(family, tmp_path), dtype="float64")
    target_spec = describe_target(config)
    spec = drafter_spec(drafter_config(block_size=K, **fields), target_spec, VOCAB - 1)
    drafter = Drafter(spec).double()
    drafter.init_weights(5)
    for p in drafter.parameters():
        p.mul_(8 if p.ndim > 1 else 1)
    tokens_BS, position_BS, document_BS = random_rows([[9, 1, 11], [14, 4]], seed=2)
    anchor_BN = torch.tensor([[0, 3, 8, 10, 12, 19, 20], [1, 7, 13, 14, 17, -1, -1]])
    pack = PackTensors(tokens_BS, document_BS, position_BS, document_BS >= 0, anchor_BN)
    blocks = make_blocks(pack, K, spec.mask_token_id, gamma=4.0)
    full = load_full_target(target_spec, config, "cpu")
    ends = full.ends()
    features = load_feature_target(target_spec, config, "cpu").features(tokens_BS, position_BS, document_BS)
    hidden_BNJH = drafter(
        features,
        ends.embed(blocks.ids_BNK).flatten(1, 2),
        position_BS,
        blocks.positions_BNK.flatten(1, 2),
        make_masks(pack, blocks, spec, "dense"),
    )
    trained_BNJV = ends.logits(hidden_BNJH)
    for row in range(2):
        for slot, anchor in enumerate(anchor_BN[row].tolist()):
            if anchor < 0:
                continue
            position = int(position_BS[row, anchor])
            prefix = tokens_BS[row, anchor - position : anchor]
            prefix_TF = features[0, :0] if position == 0 else full.forward(prefix, full.new_cache())[1]
            cache, half = DrafterCache(), position // 2
            for start, end in ((0, half), (half, position)):  # in two rounds, as the decode loop appends
                cache.append(drafter, prefix_TF[None, start:end], torch.arange(start, end)[None])
            ids = torch.full((1, K), spec.mask_token_id)
            ids[0, 0] = tokens_BS[row, anchor]
            decoded = drafter.decode_block(ends.embed(ids), torch.arange(position, position + K)[None], cache)
            torch.testing.assert_close(ends.logits(decoded)[0, 1:], trained_BNJV[row, slot], atol=1e-9, rtol=1e-9)
