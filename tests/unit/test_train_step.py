from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dfl_mp.config import LossConfig
from dfl_mp.errors import CheckpointError, ConfigError
from dfl_mp.model.blocks import default_gamma
from dfl_mp.model.linear import Linear
from dfl_mp.model.reference import loss_sums, pack_hidden
from dfl_mp.train import parameters as flat
from dfl_mp.train.schedule import learning_rate
from dfl_mp.train.step import StepSettings, TrainStep, choose_attention
from tests.unit.model_cases import (
    DFLASH,
    DPACE,
    SLIDING,
    make_drafter,
    make_ends,
    make_features,
    make_optim,
    make_pack,
    make_spec,
    one_row,
)

G, STEPS = 2, 5
EXACT = {"rtol": 0, "atol": 1e-9}


def make_step(loss: LossConfig = DFLASH, dtype: str = "float64", **optim: Any) -> TrainStep:
    settings = StepSettings(make_optim(**optim), loss, dtype, "auto", G, STEPS)
    return TrainStep(make_drafter(make_spec(**SLIDING)), make_ends(), settings)


def add(step: TrainStep, number: int, index: int) -> None:
    pack = make_pack(100 + number, 2, 24, 5)
    step.accumulate(make_features(pack, number), pack, index)


@pytest.mark.parametrize("loss", [DFLASH, DPACE], ids=lambda c: c.name)
def test_two_workers_equal_one(loss: LossConfig) -> None:
    one, left, right = (make_step(loss) for _ in range(3))
    first = one.flat.master.clone()
    for s in range(STEPS):
        add(one, 2 * s, 0), add(one, 2 * s + 1, 1)
        add(left, 2 * s, 0), add(right, 2 * s + 1, 1)
        reduced = left.vector + right.vector
        results = [one.apply(one.vector.clone(), s), left.apply(reduced, s), right.apply(reduced, s)]
        assert results[1] == results[2]
        assert results[0].pack_counts == results[1].pack_counts == (1, 1)
        assert results[1].loss == pytest.approx(results[0].loss, abs=1e-9)
        assert not results[0].skipped and results[0].tokens == results[1].tokens > 0
    for ours, theirs in zip(one.state_vectors(), left.state_vectors(), strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)
    assert (one.flat.master - first).abs().max() > 1e-3
    assert one.steps_passed == STEPS


def test_a_step_is_adamw_on_the_reference_gradient() -> None:
    """Divided by the summed denominator, clipped by the global norm, no decay on norms."""
    step = make_step(clip_norm=0.5)
    w = {name: p.detach().clone().requires_grad_() for name, p in step.drafter.named_parameters()}
    groups = [
        {"params": [p for p in w.values() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in w.values() if p.ndim == 1], "weight_decay": 0.0},
    ]
    plain = torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=1e-8)
    ends, gamma = make_ends(), default_gamma(4)
    for s in range(2):
        sums = []
        for i in range(G):
            pack = make_pack(100 + 2 * s + i, 2, 24, 5)
            hidden = pack_hidden(w, step.spec, ends, make_features(pack, 2 * s + i), pack)
            sums.append(loss_sums(hidden, pack, ends, DFLASH, gamma))
            add(step, 2 * s + i, i)
        result = step.apply(step.vector.clone(), s)
        plain.zero_grad()
        loss = (sums[0].loss + sums[1].loss) / (sums[0].denominator + sums[1].denominator)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(w.values(), 0.5)
        for group in plain.param_groups:
            group["lr"] = learning_rate(step.settings.optim, s, STEPS)
        plain.step()
        assert result.loss == pytest.approx(float(loss.detach()), abs=1e-9)
        assert result.grad_norm == pytest.approx(float(norm), abs=1e-9) and result.grad_norm > 0.5
        assert result.lr == plain.param_groups[0]["lr"]
        accepted, anchors = sum(x.accepted for x in sums), sum(x.anchors for x in sums)
        assert result.accept_len_est == pytest.approx(float(accepted / anchors))
        assert result.labels == sum(int(x.labels) for x in sums) and result.anchors == int(anchors)
    for name, p in step.drafter.named_parameters():
        torch.testing.assert_close(p, w[name], **EXACT, msg=name)


def nothing(vector: Tensor) -> Tensor:
    return torch.zeros_like(vector)


def broken_gradient(vector: Tensor) -> Tensor:
    vector = vector.clone()
    vector[3] = torch.inf
    return vector


def broken_loss(vector: Tensor) -> Tensor:
    vector = vector.clone()
    vector[-G - flat.STATISTICS + flat.LOSS] = torch.nan
    return vector


@pytest.mark.parametrize("spoil", [nothing, broken_gradient, broken_loss])
def test_a_skipped_step_moves_only_the_count_of_steps(spoil: Any) -> None:
    step = make_step()
    add(step, 0, 0)
    step.apply(step.vector.clone(), 0)
    before = [t.clone() for t in step.state_vectors()]
    add(step, 1, 0)
    result = step.apply(spoil(step.vector), 1)
    assert result.skipped and result.lr == learning_rate(step.settings.optim, 1, STEPS)
    for old, new in zip(before[:3], step.state_vectors()[:3], strict=True):
        assert torch.equal(old, new)
    assert step.counters.tolist() == [1, 1, 2]
    assert not step.vector.any()
    add(step, 2, 0)
    assert not step.apply(step.vector.clone(), 2).skipped


def test_apply_reads_the_reduced_vector_only() -> None:
    step = make_step()
    add(step, 0, 0)
    reduced = step.vector.clone()
    kept = reduced.clone()
    step.apply(reduced, 0)
    assert torch.equal(reduced, kept)


def test_discard_forgets_a_pack() -> None:
    step, clean = make_step(), make_step()
    add(step, 7, 1)
    step.waited(2.0)
    step.discard()
    assert not step.vector.any()
    add(step, 3, 0), add(clean, 3, 0)
    assert torch.equal(step.vector, clean.vector)


def test_padding_and_packing_leave_the_sums_alone() -> None:
    """Two documents in one row, padded, against a row each: the same gradient and statistics."""
    packed, alone = make_step(), make_step()
    both = one_row([8, 9], [1, 4, 10, 13, -1], 21)
    features = make_features(both)
    packed.accumulate(features, both, 0)
    for first, last, anchors in ((0, 8, [1, 4]), (8, 17, [2, 5])):
        pack = replace(one_row([last - first], anchors, last - first), tokens_BS=both.tokens_BS[:, first:last])
        alone.accumulate(features[:, first:last], pack, 0)
    alone.flat.pack_counts[0] -= 1
    torch.testing.assert_close(packed.vector, alone.vector, **EXACT)
    assert packed.apply(packed.vector.clone(), 0).tokens == 17


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_state_round_trip_continues_exactly(dtype: str) -> None:
    whole, half = make_step(dtype=dtype), make_step(dtype=dtype)
    for s in range(4):
        add(whole, s, 0)
        whole.apply(whole.vector.clone(), s)
        if s < 2:
            add(half, s, 0)
            half.apply(half.vector.clone(), s)
    tensors, meta = half.state_dict()
    fresh = make_step(dtype=dtype)
    with torch.no_grad():
        fresh.flat.master.zero_()
    fresh.load_state_dict({k: v.clone() for k, v in tensors.items()}, json.loads(json.dumps(meta)))
    assert fresh.steps_passed == 2
    for s in (2, 3):
        add(fresh, s, 0)
        fresh.apply(fresh.vector.clone(), s)
    for a, b in zip(whole.state_vectors(), fresh.state_vectors(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_state_vectors_make_a_joiner_equal(dtype: str) -> None:
    old, joiner = make_step(dtype=dtype), make_step(dtype=dtype)
    joiner.reset(5)
    add(old, 0, 0)
    old.apply(old.vector.clone(), 0)
    with torch.no_grad():
        for mine, theirs in zip(joiner.state_vectors(), old.state_vectors(), strict=True):
            mine.copy_(theirs)
    joiner.state_changed()
    for step in (old, joiner):
        add(step, 1, 0)
        step.apply(step.vector.clone(), 1)
    for (name, a), b in zip(old.drafter.named_parameters(), joiner.drafter.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_state_of_another_drafter_is_refused() -> None:
    step = make_step()
    tensors, meta = step.state_dict()
    with pytest.raises(CheckpointError, match="layout"):
        step.load_state_dict(tensors, {"layout": meta["layout"][1:]})
    with pytest.raises(CheckpointError, match="exp_avg"):
        step.load_state_dict({k: v for k, v in tensors.items() if k != "exp_avg"}, meta)
    with pytest.raises(CheckpointError, match="master"):
        step.load_state_dict(tensors | {"master": tensors["master"].float()}, meta)


def test_parameters_are_views_with_matrices_first() -> None:
    step = make_step()
    f = step.flat
    assert sum(p.numel() for p in step.drafter.parameters()) == f.num_parameters == f.master.numel()
    dims = [len(shape) for _, shape in f.layout]
    assert dims == sorted(dims, reverse=True)
    f.master.fill_(3.0)
    f.gradient.fill_(4.0)
    assert all((p == 3).all() for p in step.drafter.parameters())
    sums = [m.gradient_sum for m in step.drafter.modules() if isinstance(m, Linear)]
    sums += [p.grad for p in step.drafter.parameters() if p.ndim == 1]
    assert sum(g.numel() for g in sums) == f.num_parameters and all((g == 4).all() for g in sums)


def test_bfloat16_reads_a_copy_of_float32_masters() -> None:
    """An update smaller than bfloat16 can hold is kept, and the copy is the rounded master after each step."""
    step = make_step(dtype="bfloat16", lr=1e-6)
    before = step.flat.master.clone()
    assert step.drafter.fc.weight.dtype == torch.bfloat16 and step.drafter.norm.weight.dtype == torch.float32
    add(step, 0, 0)
    step.apply(step.vector, 0)
    moved = (step.flat.master - before)[: step.flat.num_matrix]
    assert 0 < moved.abs().max() < 1e-5 and not step.vector.any()
    assert torch.equal(step.flat.working, step.flat.master[: step.flat.num_matrix].bfloat16())


def test_warm_up_changes_nothing() -> None:
    cold, warm = make_step(), make_step()
    pack = make_pack(1, 2, 24, 5)
    warm.warm_up(make_features(pack, 1), pack)
    for step in (cold, warm):
        add(step, 0, 0)
        step.apply(step.vector.clone(), 0)
    for a, b in zip(cold.state_vectors(), warm.state_vectors(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lower_precision_follows_float64(dtype: str) -> None:
    exact, low = make_step(), make_step(dtype=dtype)
    assert low.flat.master.dtype == torch.float32
    for step in (exact, low):
        add(step, 0, 0)
    a, b = exact.flat.gradient, low.flat.gradient.double()
    share = float((a - b).norm() / a.norm())
    assert share < (1e-4 if dtype == "float32" else 0.1)
    assert low.apply(low.vector.clone(), 0).loss == pytest.approx(exact.apply(exact.vector.clone(), 0).loss, rel=0.05)


def test_an_empty_step_has_no_loss() -> None:
    step = make_step()
    result = step.apply(step.vector.clone(), 0)
    assert result.skipped and math.isnan(result.loss) and math.isnan(result.accept_len_est)
    assert result.pack_counts == (0, 0)


def test_attention_is_chosen_by_device() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert choose_attention("auto", "float32", cpu, 16) == "dense"
    assert choose_attention("auto", "bfloat16", cuda, 16) == "flex"
    assert choose_attention("auto", "float64", cuda, 16) == "dense"
    assert choose_attention("dense", "bfloat16", cuda, 16) == "dense"
    with pytest.raises(ConfigError, match=r"drafter\.attention"):
        choose_attention("flex", "float32", cpu, 16)
