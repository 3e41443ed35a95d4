"""The export in the `dflash` package, the public reader: same logits, same decoding.

Set DFL_CONFORMANCE to a folder with `dflash` 0.1.0 in it (`make conformance` does); without it these tests are skipped.
Checked with dflash 0.1.0, transformers 5.17, torch 2.13.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dfl_mp.export import export_drafter, load_exported
from dfl_mp.model.decode import Limits, speculative_decode
from dfl_mp.model.drafter import Drafter, DrafterCache
from dfl_mp.model.target_full import load_full_target
from dfl_mp.model.target_spec import describe_target, drafter_spec
from tests.unit.test_target_spec import drafter_config
from tests.unit.tiny_targets import VOCAB, fit_drafter, save_tiny, target_config

torch.set_num_threads(1)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
FOLDER = os.environ.get("DFL_CONFORMANCE")
if FOLDER:
    sys.path.insert(0, FOLDER)
if importlib.util.find_spec("dflash") is None:
    pytest.skip("DFL_CONFORMANCE names no folder with the dflash package", allow_module_level=True)

VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding": {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 7},
    "sliding_not_causal": {
        "layer_types": ("full_attention", "sliding_attention"),
        "sliding_window": 7,
        "is_causal": False,
    },
}


@pytest.fixture(params=[(f, v) for f in ("qwen3", "gemma2", "gpt_neox") for v in VARIANTS], ids="-".join)
def pair(request: pytest.FixtureRequest, tmp_path: Path):
    """A target, our drafter and theirs, both drafters read from the same exported folder, in float32."""
    from dflash.model import DFlashDraftModel

    family, variant = request.param
    config = target_config(save_tiny(family, tmp_path / "target"))
    target = load_full_target(describe_target(config), config, "cpu")
    spec = drafter_spec(drafter_config(block_size=5, **VARIANTS[variant]), target.spec, VOCAB - 1)
    made = Drafter(spec)
    made.init_weights(3)
    fit_drafter(made, target, PROMPT)
    export_drafter(made.state_dict(), spec, target.spec, tmp_path / "export")
    spec, state = load_exported(tmp_path / "export")
    ours = Drafter(spec)
    ours.load_state_dict(state)
    theirs, report = DFlashDraftModel.from_pretrained(
        tmp_path / "export", dtype=torch.float32, output_loading_info=True, local_files_only=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return target, ours.eval(), theirs.eval()


@torch.no_grad()
def test_logits(pair) -> None:
    target, ours, theirs = pair
    ends, (C, K) = target.ends(), (11, 5)
    features = torch.randn(1, C, target.spec.hidden_size * 2, generator=torch.Generator().manual_seed(0)) * 3
    ids = torch.tensor([[4] + [VOCAB - 1] * (K - 1)])
    positions = torch.arange(C + K)[None]
    cache = DrafterCache()
    cache.append(ours, features, positions[:, :C])
    found = ends.logits(ours.decode_block(ends.embed(ids), positions[:, C:], cache))
    hidden = theirs(position_ids=positions, noise_embedding=ends.embed(ids), target_hidden=features)
    torch.testing.assert_close(
        found, theirs.compute_logits(hidden, target.model.get_output_embeddings()), atol=1e-4, rtol=1e-4
    )


def test_decoding(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their loop asks a CUDA clock for the time; everything else of it runs as published."""
    import dflash.model

    monkeypatch.setattr(dflash.model, "_cuda_time", lambda: 0.0)
    target, ours, theirs = pair
    ends, longest = target.ends(), 0
    for prompt, most in ((PROMPT, 30), ([8], 1), ([2, 7], 2), ([5, 5, 5], 9), ([11, 40, 7], 40)):
        for stop in ([], [13], list(range(0, VOCAB, 9))):
            mine = speculative_decode(target, ours, ends, prompt, Limits(most, frozenset(stop)))
            other = dflash.model.dflash_generate(
                theirs, target.model, torch.tensor([prompt]), most, stop, return_stats=True
            )
            assert list(mine.tokens) == other.output_ids[0, len(prompt) :].tolist()
            assert list(mine.accepted_lengths) == other.acceptance_lengths
            longest = max(longest, 0, *mine.accepted_lengths)
    assert longest >= 3
