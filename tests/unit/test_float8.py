"""Training products in float8: near the exact ones, the weight gradient untouched. A CPU has the product too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dfl_mp.errors import ConfigError
from dfl_mp.model.float8 import require, to_float8
from dfl_mp.model.linear import Linear, use_float8

torch.set_num_threads(1)


def passes(float8: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Output, gradient of the input, sum of weight gradients."""
    g = torch.Generator().manual_seed(0)
    layer = Linear(32, 48).bfloat16()
    layer.weight.data = (torch.randn(48, 32, generator=g) * 0.02).bfloat16()
    layer.gradient_sum = torch.zeros(48, 32)
    if float8:
        use_float8(layer)
    x = torch.randn(2, 20, 32, generator=g).bfloat16().requires_grad_()
    y = layer(x)
    y.backward(torch.randn(2, 20, 48, generator=g).bfloat16())
    assert x.grad is not None
    return y.detach().float(), x.grad.float(), layer.gradient_sum


def error(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_output_and_input_gradient_are_rounded_and_the_weight_gradient_is_not() -> None:
    exact, rounded = passes(False), passes(True)
    for i in range(2):
        assert 0.01 < error(rounded[i], exact[i]) < 0.06
    assert torch.equal(rounded[2], exact[2])


def test_each_factor_is_scaled_along_the_sum() -> None:
    """Rows of the weight from 0.001 to 1000 times the usual: each keeps its precision."""
    layer = Linear(32, 32).bfloat16()
    layer.weight.data.mul_(torch.logspace(-3, 3, 32)[:, None].bfloat16())
    layer.gradient_sum = torch.zeros(32, 32)
    use_float8(layer)
    x = torch.randn(64, 32).bfloat16()
    y, exact = layer(x).detach().float(), x.float() @ layer.weight.detach().float().T
    assert float(((y - exact).norm(dim=0) / exact.norm(dim=0)).max()) < 0.08


def test_sizes_that_do_not_fit_stay_as_they_are() -> None:
    layer = Linear(24, 48)
    use_float8(layer)
    assert not layer.float8


def test_a_row_of_zeros_stays_zero() -> None:
    rounded, scale = to_float8(torch.zeros(2, 16))
    assert bool((rounded.float() == 0).all()) and bool((scale > 0).all())


def test_it_is_refused_by_its_field() -> None:
    with pytest.raises(ConfigError, match=r"drafter\.float8: needs a GPU of compute capability 8\.9"):
        require("drafter.float8", torch.device("cpu"), torch.bfloat16)
