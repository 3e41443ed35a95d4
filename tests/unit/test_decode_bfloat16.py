"""In bfloat16 a response may leave the target's own only where two tokens are nearly tied."""

from __future__ import annotations

from pathlib import Path

import torch

from dfl_mp.model.decode import Limits
from dfl_mp.model.drafter import Drafter
from dfl_mp.model.target_full import load_full_target
from dfl_mp.model.target_spec import describe_target, drafter_spec
from dfl_mp.roles.evaluator import decode_all, first_differences, largest_gap, make_drafter
from tests.unit.test_target_spec import drafter_config
from tests.unit.tiny_targets import VOCAB, fit_drafter, save_tiny, target_config

torch.set_num_threads(1)


def test_differences_are_near_ties(tmp_path: Path) -> None:
    config = target_config(save_tiny("gemma2", tmp_path), dtype="bfloat16")
    spec = describe_target(config)
    rounded = load_full_target(spec, config, "cpu")
    exact = load_full_target(spec, config.model_copy(update={"dtype": "float32"}), "cpu")
    drafter = Drafter(drafter_spec(drafter_config(block_size=5), spec, VOCAB - 1))
    drafter.init_weights(0)
    prompts = [[3, 1, 4, 1, 5], [7], [9, 9, 2], [30, 31]]
    fit_drafter(drafter, exact, prompts[0], steps=40)
    trained = make_drafter(drafter.spec, drafter.state_dict(), rounded)
    assert trained.fc.weight.dtype == torch.bfloat16
    answers = decode_all(rounded, (trained, None), prompts, Limits(20), lambda line: None)
    differences = first_differences(prompts, answers)
    assert largest_gap(exact, differences) < 0.1
    some_other = [([3, 1], own, (own + 1) % VOCAB) for own in range(3)]
    assert largest_gap(exact, some_other) > 0.1
