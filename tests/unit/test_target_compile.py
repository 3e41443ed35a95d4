"""Compiled layers: one graph for all of a kind, features copied outside of them, back to eager when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from dfl_mp.errors import ConfigError
from dfl_mp.model.float8 import to_float8
from dfl_mp.model.target import FeatureTarget, load_feature_target, use_float8
from dfl_mp.model.target_compile import compile_target
from dfl_mp.model.target_float8 import Float8Linear
from dfl_mp.model.target_proof import median_error
from dfl_mp.model.target_spec import describe_target
from tests.unit.test_target_features import pack
from tests.unit.tiny_targets import save_tiny, target_config

torch.set_num_threads(1)


def load(family: str, folder: Path, attention: str, **shape: int) -> FeatureTarget:
    config = target_config(save_tiny(family, folder, **shape), layer_ids=(0, 2, 4), attention=attention)
    return load_feature_target(describe_target(config), config, "cpu")


@pytest.mark.parametrize(("family", "attention", "graphs"), [("qwen3", "flex", 1), ("gemma3", "flex", 2)])
def test_documents_do_not_recompile_a_layer(family: str, attention: str, graphs: int, tmp_path: Path) -> None:
    target = load(family, tmp_path, attention)
    packs = [pack(rows, 1) for rows in ([[20, 12], [32]], [[3, 3, 20], [1, 31]], [[32], [30]])]
    expected = [target.features(*p) for p in packs]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    assert compile_target(target, 2, 32, backend="aot_eager") is None
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    with torch._dynamo.config.patch(error_on_recompile=True):
        for inputs, wanted in zip(packs, expected, strict=True):
            torch.testing.assert_close(target.features(*inputs), wanted, atol=1e-5, rtol=1e-5)


def test_a_compiler_that_fails_leaves_the_layers_as_they_were(tmp_path: Path) -> None:
    def broken(graph: object, inputs: object) -> object:
        raise RuntimeError("no such device")

    target = load("qwen3", tmp_path, "auto")
    inputs = pack([[20, 12], [32]], 1)
    before = target.features(*inputs)
    assert "no such device" in str(compile_target(target, 2, 32, backend=broken))  # type: ignore[arg-type]
    assert torch.equal(target.features(*inputs), before)


def test_documents_that_run_alone_are_not_compiled(tmp_path: Path) -> None:
    assert compile_target(load("opt", tmp_path, "auto"), 2, 32) == "documents run one by one, in many shapes"


def test_float8_is_refused_without_a_gpu_by_its_name(tmp_path: Path) -> None:
    config = target_config(save_tiny("qwen3", tmp_path), float8=True)
    with pytest.raises(ConfigError, match=r"target\.float8: needs a GPU of compute capability 8\.9"):
        load_feature_target(describe_target(config), config, "cpu")


@pytest.mark.parametrize("family", ["qwen3", "gpt_neox"])
def test_float8_layers_are_the_products_of_rounded_factors(family: str, tmp_path: Path) -> None:
    """The CPU has the product too, only not fast; GPT-NeoX has biases."""
    target = load(family, tmp_path, "auto", hidden_size=64, intermediate_size=96, head_dim=16)
    inputs = pack([[20, 12], [32]], 1)
    before = target.features(*inputs)
    linear = next(m for m in target.layers.modules() if isinstance(m, nn.Linear))
    x = torch.randn(3, 5, linear.in_features).bfloat16()
    made = Float8Linear(linear.bfloat16())
    (x8, sx), (w8, sw) = to_float8(x.flatten(0, 1)), to_float8(linear.weight)
    expected = (x8.float() * sx) @ (w8.float() * sw).T + (0 if linear.bias is None else linear.bias.float())
    torch.testing.assert_close(made(x).flatten(0, 1).float(), expected, atol=2e-2, rtol=1e-2)
    assert (
        0.01 < median_error(expected, x.flatten(0, 1).float() @ linear.weight.float().T) < 0.06
        or linear.bias is not None
    )
    target.decoder.bfloat16()
    use_float8(target)
    assert not any(type(m) is nn.Linear for m in target.layers.modules())
    assert 0.01 < median_error(target.features(*inputs).float(), before) < 0.3
