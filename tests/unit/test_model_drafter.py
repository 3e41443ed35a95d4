from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from dfl_mp.errors import ConfigError
from dfl_mp.model.attention import Rotary, inverse_frequencies, with_frequencies
from dfl_mp.model.blocks import make_blocks
from dfl_mp.model.drafter import Drafter, DrafterCache
from dfl_mp.model.mask import make_masks
from dfl_mp.model.reference import pack_hidden
from dfl_mp.model.shapes import FrozenEnds, PackTensors
from dfl_mp.specs import DrafterSpec
from tests.unit.model_cases import (
    FEATURES,
    HIDDEN,
    SLIDING,
    make_drafter,
    make_ends,
    make_features,
    make_pack,
    make_spec,
    one_row,
    packs,
    specs,
)

EXACT = {"rtol": 0, "atol": 1e-9}


def hidden_of(drafter: Drafter, ends: FrozenEnds, features: Tensor, pack: PackTensors) -> Tensor:
    """[B, N, K − 1, H] from the fast form."""
    spec = drafter.spec
    blocks = make_blocks(pack, spec.block_size, spec.mask_token_id, 4.0)
    masks = make_masks(pack, blocks, spec, "dense")
    embeds = ends.embed(blocks.ids_BNK.flatten(1))
    return drafter(features, embeds, pack.position_BS, blocks.positions_BNK.flatten(1), masks)


@given(packs, specs)
@settings(deadline=None, max_examples=12)
def test_fast_form_is_the_reference(pack: PackTensors, spec: DrafterSpec) -> None:
    drafter, ends, features = make_drafter(spec), make_ends(embedding_scale=1.5), make_features(pack)
    fast = hidden_of(drafter, ends, features, pack)
    slow = pack_hidden(dict(drafter.named_parameters()), spec, ends, features, pack)[:, :, 1:]
    torch.testing.assert_close(fast, slow, **EXACT)
    assert not fast[pack.anchor_BN < 0].any()


@pytest.mark.parametrize("changes", [{}, SLIDING, SLIDING | {"is_causal": False}])
def test_gradients_are_those_of_the_reference(changes: dict[str, Any]) -> None:
    spec = make_spec(**changes)
    pack = make_pack(11, 2, 14, 3)
    assert (pack.anchor_BN < 0).any() and (pack.anchor_BN >= 0).any()
    drafter, ends, features = make_drafter(spec), make_ends(), make_features(pack)
    names, parameters = zip(*drafter.named_parameters(), strict=True)
    pull = torch.randn(2, 3, spec.block_size - 1, HIDDEN, dtype=torch.float64)
    fast = torch.autograd.grad((hidden_of(drafter, ends, features, pack) * pull).sum(), parameters)
    slow_hidden = pack_hidden(dict(zip(names, parameters, strict=True)), spec, ends, features, pack)[:, :, 1:]
    slow = torch.autograd.grad((slow_hidden * pull).sum(), parameters)
    for name, a, b in zip(names, fast, slow, strict=True):
        assert b.any(), name
        torch.testing.assert_close(a, b, **EXACT, msg=name)


def test_a_pack_of_padding_has_zero_output_and_finite_gradients() -> None:
    pack = one_row([5], [-1, -1], row_tokens=8)
    drafter = make_drafter(make_spec(**SLIDING))
    hidden = hidden_of(drafter, make_ends(), make_features(pack), pack)
    assert not hidden.any()
    hidden.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in drafter.parameters())


@given(st.integers(0, 10**6), st.data())
@settings(deadline=None, max_examples=15)
def test_a_block_does_not_see_other_anchors(seed: int, data: st.DataObject) -> None:
    """The one kept anchor gives the same hidden states whatever the other slots hold."""
    anchors = data.draw(st.lists(st.integers(0, 17), min_size=2, max_size=5, unique=True).map(sorted))
    keep = data.draw(st.integers(0, len(anchors) - 1))
    drafter, ends = make_drafter(make_spec(**SLIDING)), make_ends()
    many = one_row([7, 11], anchors, row_tokens=20, seed=seed)
    alone = replace(many, anchor_BN=torch.tensor([[anchors[keep], -1]]))
    features = make_features(many, seed)
    a, b = (hidden_of(drafter, ends, features, pack) for pack in (many, alone))
    torch.testing.assert_close(a[0, keep], b[0, 0], **EXACT)


def test_padding_the_row_changes_nothing() -> None:
    drafter, ends = make_drafter(make_spec(**SLIDING)), make_ends()
    short, long = one_row([5, 7], [2, 6, 9], 12), one_row([5, 7], [2, 6, 9, -1, -1], 19)
    long.tokens_BS[:, :12] = short.tokens_BS
    features = make_features(long)
    a = hidden_of(drafter, ends, features[:, :12], short)
    b = hidden_of(drafter, ends, features, long)
    torch.testing.assert_close(a[0], b[0, :3], **EXACT)


def test_packed_documents_equal_documents_alone() -> None:
    drafter, ends = make_drafter(make_spec(**SLIDING)), make_ends()
    both = one_row([8, 9], [1, 4, 10, 13], 17)
    features = make_features(both)
    packed = hidden_of(drafter, ends, features, both)
    for first, last, anchors, slots in ((0, 8, [1, 4], slice(0, 2)), (8, 17, [2, 5], slice(2, 4))):
        alone = one_row([last - first], anchors, last - first)
        alone.tokens_BS.copy_(both.tokens_BS[:, first:last])
        hidden = hidden_of(drafter, ends, features[:, first:last], alone)
        torch.testing.assert_close(hidden[0], packed[0, slots], **EXACT)


@pytest.mark.parametrize("changes", [{}, SLIDING, SLIDING | {"is_causal": False}])
def test_decoding_on_a_cache_equals_the_training_form(changes: dict[str, Any]) -> None:
    spec = make_spec(**changes)
    drafter, ends = make_drafter(spec), make_ends()
    anchors = [3, 4, 9, 13]
    pack = one_row([16], anchors, 16)
    features = make_features(pack)
    trained = hidden_of(drafter, ends, features, pack)
    cache, done = DrafterCache(), 0
    for n, a in enumerate(anchors):
        cache.append(drafter, features[:, done:a], pack.position_BS[:, done:a])
        done = a
        ids = torch.tensor([[int(pack.tokens_BS[0, a])] + [spec.mask_token_id] * (spec.block_size - 1)])
        hidden = drafter.decode_block(ends.embed(ids), a + torch.arange(spec.block_size)[None], cache)
        torch.testing.assert_close(hidden[0, 1:], trained[0, n], **EXACT)


def test_a_cached_token_at_the_anchor_is_not_seen() -> None:
    spec = make_spec()
    drafter, ends = make_drafter(spec), make_ends()
    pack = one_row([16], [5], 16)
    features = make_features(pack)
    ids, at = pack.tokens_BS[:, 5:9], torch.arange(5, 9)[None]
    hidden = []
    for committed in (5, 6):
        cache = DrafterCache()
        cache.append(drafter, features[:, :committed], pack.position_BS[:, :committed])
        hidden.append(drafter.decode_block(ends.embed(ids), at, cache))
    torch.testing.assert_close(hidden[0], hidden[1], **EXACT)


def test_a_batched_cache_pads_rows_with_position_minus_one() -> None:
    spec = make_spec(**SLIDING)
    drafter, ends = make_drafter(spec), make_ends()
    pack = one_row([16], [5, 8], 16)
    features = make_features(pack)
    trained = hidden_of(drafter, ends, features, pack)
    positions = torch.arange(8).repeat(2, 1)
    positions[0, 5:] = -1
    cache = DrafterCache()
    cache.append(drafter, features[:, :0].expand(2, -1, -1), positions[:, :0])
    cache.append(drafter, features[:, :8].expand(2, -1, -1), positions)
    ids = torch.full((2, spec.block_size), spec.mask_token_id)
    ids[:, 0] = pack.tokens_BS[0, [5, 8]]
    at = torch.tensor([[5], [8]]) + torch.arange(spec.block_size)
    torch.testing.assert_close(drafter.decode_block(ends.embed(ids), at, cache)[:, 1:], trained[0], **EXACT)


def test_tensor_names_are_those_of_the_readers() -> None:
    spec = make_spec(num_layers=3, layer_types=("full_attention",) * 3)
    H, D, A, G, inner = HIDDEN, spec.head_dim, 4, 2, spec.intermediate_size
    expected = {"fc.weight": (H, FEATURES * H), "hidden_norm.weight": (H,), "norm.weight": (H,)}
    for i in range(3):
        p, attn, mlp = f"layers.{i}", f"layers.{i}.self_attn", f"layers.{i}.mlp"
        expected |= {f"{p}.input_layernorm.weight": (H,), f"{p}.post_attention_layernorm.weight": (H,)}
        expected |= {f"{attn}.q_proj.weight": (A * D, H), f"{attn}.o_proj.weight": (H, A * D)}
        expected |= {f"{attn}.k_proj.weight": (G * D, H), f"{attn}.v_proj.weight": (G * D, H)}
        expected |= {f"{attn}.q_norm.weight": (D,), f"{attn}.k_norm.weight": (D,)}
        expected |= {f"{mlp}.gate_proj.weight": (inner, H), f"{mlp}.up_proj.weight": (inner, H)}
        expected |= {f"{mlp}.down_proj.weight": (H, inner)}
    state = Drafter(spec).state_dict()
    assert {name: tuple(t.shape) for name, t in state.items()} == expected
    assert len(state) == 11 * 3 + 3


def test_initial_weights_are_a_function_of_the_seed() -> None:
    a, b, c = (Drafter(make_spec()) for _ in range(3))
    a.init_weights(3), b.init_weights(3), c.init_weights(4)
    for (name, x), y, z in zip(a.named_parameters(), b.parameters(), c.parameters(), strict=True):
        assert torch.equal(x, y)
        assert (x == 1).all() if "norm" in name else not torch.equal(x, z)
    assert float(a.fc.weight.detach().std()) == pytest.approx(0.02, rel=0.2)


ROPES = [
    {"rope_type": "default", "rope_theta": 5000.0},
    {"rope_type": "linear", "rope_theta": 5000.0, "factor": 3.0},
    {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 128},
    {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 128},
]  # fmt: skip


@pytest.mark.parametrize("rope", ROPES, ids=lambda r: r["rope_type"])
def test_rope_is_that_of_transformers(rope: dict[str, Any]) -> None:
    spec = make_spec(head_dim=16, rope_parameters=rope, max_position_embeddings=512)
    theirs = Qwen3RotaryEmbedding(
        Qwen3Config(head_dim=16, max_position_embeddings=512, hidden_size=HIDDEN, rope_parameters=dict(rope))
    )
    positions = torch.tensor([[0, 1, 77, 500]])
    cos, sin = Rotary(spec)(positions, torch.float32)
    for ours, expected in zip((cos, sin), theirs(torch.zeros(1), positions), strict=True):
        torch.testing.assert_close(ours[:, 0], expected, rtol=0, atol=1e-6)
    assert spec.rope_parameters == rope


@pytest.mark.parametrize("rope", ROPES, ids=lambda r: r["rope_type"])
def test_frequencies_survive_in_the_spec(rope: dict[str, Any]) -> None:
    spec = make_spec(head_dim=16, rope_parameters=rope, max_position_embeddings=512)
    read = DrafterSpec.model_validate_json(with_frequencies(spec).model_dump_json())
    assert (read.frequencies is None) == (rope["rope_type"] == "default")
    (ours, scale), (computed, expected) = inverse_frequencies(read), inverse_frequencies(spec)
    assert torch.equal(ours, computed) and ours.dtype == torch.float32 and scale == expected


def test_casting_the_drafter_does_not_round_its_frequencies() -> None:
    spec = make_spec()
    drafter = Drafter(spec).to(torch.bfloat16)
    assert drafter.fc.weight.dtype == torch.bfloat16
    assert torch.equal(drafter.rotary.inv_freq, inverse_frequencies(spec)[0])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"layer_types": ("full_attention",)}, "drafter.layer_types"),
        ({"layer_types": ("sliding_attention",) * 2}, "drafter.sliding_window"),
        ({"layer_types": ("sliding_attention",) * 2, "sliding_window": 3}, "drafter.sliding_window"),
        ({"num_key_value_heads": 3}, "drafter.num_key_value_heads"),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1.0}}, "spiral"),
    ],
)
def test_wrong_specs_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Drafter(make_spec(**changes))


@pytest.mark.parametrize("attention", ["dense", "flex"])
def test_packs_of_one_shape_share_one_graph(attention: str) -> None:
    """Traced whole, once, whatever anchors and documents the next pack has; flex has no backward on a CPU."""
    torch._dynamo.reset()
    spec = make_spec(**SLIDING)
    drafter, ends = make_drafter(spec, dtype=torch.float32), make_ends(dtype=torch.float32)
    compiled = torch.compile(drafter.forward, backend="aot_eager", dynamic=False, fullgraph=True)
    with torch.set_grad_enabled(attention == "dense"), torch._dynamo.config.patch(error_on_recompile=True):
        for seed in (1, 2):
            pack = make_pack(seed, 2, 60, 9)
            features = make_features(pack, dtype=torch.float32)
            blocks = make_blocks(pack, spec.block_size, spec.mask_token_id, 4.0)
            hidden = compiled(
                features,
                ends.embed(blocks.ids_BNK.flatten(1)),
                pack.position_BS,
                blocks.positions_BNK.flatten(1),
                make_masks(pack, blocks, spec, attention),
            )
            expected = hidden_of(drafter, ends, features, pack)
            torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-5)
