"""Speculative decoding commits the target's own greedy tokens, whatever the drafter proposes."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dfl_mp.model.decode import Decoded, Limits, acceptance, greedy_decode, repetition_rate, speculative_decode
from dfl_mp.model.drafter import Drafter
from dfl_mp.model.shapes import FrozenEnds
from dfl_mp.model.target_full import FullTarget, load_full_target
from dfl_mp.model.target_spec import describe_target, drafter_spec
from tests.unit.test_target_spec import drafter_config
from tests.unit.tiny_targets import FAMILIES, VOCAB, save_tiny, target_config, tiny_model

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory):
    @cache
    def load(family: str) -> FullTarget:
        config = target_config(save_tiny(family, tmp_path_factory.mktemp(family)))
        return load_full_target(describe_target(config), config, "cpu")

    return load


def make_drafter(target: FullTarget, seed: int, **fields: object) -> Drafter:
    """Random weights ten times the usual size: drafts that differ from each other and depend on everything they see."""
    drafter = Drafter(drafter_spec(drafter_config(**fields), target.spec, mask_token_id=VOCAB - 1))
    drafter.init_weights(seed)
    with torch.no_grad():
        for p in drafter.parameters():
            p.mul_(10 if p.ndim > 1 else 1)
    return drafter.requires_grad_(False)


class EchoDrafter:
    """Proposes a given continuation, spoilt at every `every`-th token: long agreement without training."""

    def __init__(self, drafter: Drafter, tokens: list[int], every: int) -> None:
        self.inner, self.tokens, self.every = drafter, tokens, every

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    def decode_block(self, block_embeds_BKH: torch.Tensor, positions_BK: torch.Tensor, cache: object) -> torch.Tensor:
        hidden = torch.zeros(*positions_BK.shape, VOCAB)
        for slot, position in enumerate(positions_BK[0].tolist()):
            token = self.tokens[position] if position < len(self.tokens) else 0
            hidden[0, slot, (token + (position % self.every == 0)) % VOCAB] = 1.0
        return hidden


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3_5"])
@settings(max_examples=5, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
    max_new_tokens=st.integers(1, 20),
    stop=st.frozensets(st.integers(0, VOCAB - 1), max_size=4),
    block_size=st.integers(2, 6),
    seed=st.integers(0, 99),
)
def test_output_is_the_targets_own(targets, family, prompt, max_new_tokens, stop, block_size, seed) -> None:
    target = targets(family)
    drafter = make_drafter(target, seed, block_size=block_size)
    limits = Limits(max_new_tokens, stop)
    expected = greedy_decode(target, prompt, limits)
    found = speculative_decode(target, drafter, target.ends(), prompt, limits)
    assert found.tokens == expected.tokens
    assert sum(found.accepted_lengths) == len(found.tokens) - 1
    assert all(1 <= n <= block_size for n in found.accepted_lengths)


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3_5"])
@pytest.mark.parametrize("every", [2, 5, 1000])
def test_partly_right_drafts_are_cut_where_they_go_wrong(targets, family: str, every: int) -> None:
    """Long agreement exercises the crop of every kind of cache, windows of 5 included."""
    target, prompt = targets(family), [3, 1, 4, 1, 5]
    expected = greedy_decode(target, prompt, Limits(30))
    echo = EchoDrafter(make_drafter(target, 0, block_size=8), prompt + list(expected.tokens), every)
    plain = FrozenEnds(target.ends().embed_VH, torch.eye(VOCAB))
    found = speculative_decode(target, echo, plain, prompt, Limits(30))
    assert found.tokens == expected.tokens
    assert max(found.accepted_lengths) == min(every, 8)
    if every == 1000:
        assert found.accepted_lengths == (8, 8, 8, 5)


def test_greedy_is_the_targets_argmax_without_a_cache(targets) -> None:
    for family in FAMILIES:
        model, tokens = tiny_model(family), [7, 8]
        found = greedy_decode(targets(family), tokens, Limits(12)).tokens
        for token in found:
            with torch.no_grad():
                assert token == int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax())
            tokens = [*tokens, token]


def test_decoding_ends_with_the_stop_token(targets) -> None:
    target = targets("qwen3")
    free = greedy_decode(target, [3], Limits(20)).tokens
    stop = free[6]
    limits = Limits(20, frozenset({stop}))
    expected = free[: free.index(stop) + 1]
    assert greedy_decode(target, [3], limits).tokens == expected
    echo = EchoDrafter(make_drafter(target, 0, block_size=8), [3, *free], 1000)
    found = speculative_decode(target, echo, FrozenEnds(target.ends().embed_VH, torch.eye(VOCAB)), [3], limits)
    assert found.tokens == expected
    assert sum(found.accepted_lengths) == len(expected) - 1


def test_features_reach_the_drafter(targets) -> None:
    """With its features blanked a drafter proposes something else, and the output stays the target's."""
    target, seen = targets("qwen3"), {False: 0, True: 0}
    for seed in range(3):
        drafter = make_drafter(target, seed, block_size=6)
        outputs = [
            speculative_decode(target, drafter, target.ends(), [5, seed], Limits(30), zero_features=zero)
            for zero in (False, True)
        ]
        assert outputs[0].tokens == outputs[1].tokens
        for zero, output in zip((False, True), outputs, strict=True):
            seen[zero] += len(output.accepted_lengths)
    assert seen[False] != seen[True]


def test_the_feature_context_is_every_committed_token_before_the_anchor(targets) -> None:
    target, contexts = targets("gemma2"), []

    class Spy(EchoDrafter):
        def decode_block(self, embeds, positions_BK, cache):
            contexts.append((cache.positions_BT[0].tolist(), positions_BK[0].tolist()))
            return super().decode_block(embeds, positions_BK, cache)

    prompt = [9, 2, 6]
    expected = greedy_decode(target, prompt, Limits(14)).tokens
    spy = Spy(make_drafter(target, 0, block_size=4), [*prompt, *expected], 3)
    speculative_decode(target, spy, FrozenEnds(target.ends().embed_VH, torch.eye(VOCAB)), prompt, Limits(14))
    assert len(contexts) > 3
    for context, block in contexts:
        assert context == list(range(block[0]))
    assert contexts[-1][1][-1] <= len(prompt) + 14 - 1


def test_acceptance() -> None:
    found = acceptance([Decoded((5, 6, 7, 8), (3,)), Decoded((5, 6, 7), (1, 1)), Decoded((2,), ())])
    assert (found.tau_mean, found.tau_pooled, found.histogram) == (2.0, 5 / 3, {1: 2, 3: 1})
    assert acceptance([]).tau_mean == 0.0


def test_repetition_rate() -> None:
    assert repetition_rate([1, 2, 3]) == 0.0
    assert repetition_rate([1, 2, 3, 4, 5]) == 0.0
    assert repetition_rate([7] * 7) == 0.75
