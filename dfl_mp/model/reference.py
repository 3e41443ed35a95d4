"""The slow form, by definition: each block alone, on its own context only, in plain loops. Differentiable.

It shares nothing with the fast form but the rotary frequencies, and the tests hold the fast form to it in float64.
Legend of shape suffixes: `shapes.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dfl_mp.config import LossConfig
from dfl_mp.model.attention import inverse_frequencies
from dfl_mp.model.shapes import FrozenEnds, LossSums, PackTensors
from dfl_mp.specs import DrafterSpec

Weights = dict[str, Tensor]


def visible(pack: PackTensors, row: int, spec: DrafterSpec, kind: str) -> list[list[bool]]:
    """The mask of one row, [M][S + M], element by element."""
    anchors, documents = pack.anchor_BN[row].tolist(), pack.document_BS[row].tolist()
    K, S = spec.block_size, len(documents)
    sliding = kind == "sliding_attention"
    rows = []
    for b, a in enumerate(anchors):
        for j in range(K):
            seen = [False] * (S + len(anchors) * K)
            for t in range(S):
                near = not sliding or a + j - t < (spec.sliding_window or 0)
                seen[t] = a >= 0 and t < a and documents[t] == documents[a] and near
            for i in range(K):
                seen[S + b * K + i] = a >= 0 and (not sliding or not spec.is_causal or i <= j)
            rows.append(seen)
    return rows


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)


def rotated(x_D: Tensor, position: int, spec: DrafterSpec) -> Tensor:
    """Pairs (i, i + D/2) turned by position · frequency."""
    frequency, scale = inverse_frequencies(spec)
    half = x_D.shape[0] // 2
    angle = position * frequency.double()
    cos, sin = angle.cos() * scale, angle.sin() * scale
    first, second = x_D[:half], x_D[half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin))


def attention(w: Weights, prefix: str, spec: DrafterSpec, block: Tensor, context: Tensor, anchor: int) -> Tensor:
    """One layer's attention of one block: h [K, H] on c [T, H] of the T = `anchor` positions before it."""
    kind = spec.layer_types[int(prefix.split(".")[1])]
    p = f"{prefix}.self_attn"
    D, eps = spec.head_dim, spec.rms_norm_eps
    group = spec.num_attention_heads // spec.num_key_value_heads
    keys_in = torch.cat((context, block))
    out = []
    for j in range(block.shape[0]):
        heads = []
        for a in range(spec.num_attention_heads):
            g = a // group
            wq, wk, wv = (
                w[f"{p}.{name}_proj.weight"][i * D : (i + 1) * D] for name, i in (("q", a), ("k", g), ("v", g))
            )
            q = rotated(norm(wq @ block[j], w[f"{p}.q_norm.weight"], eps), anchor + j, spec)
            scores, values = [], []
            for t in range(keys_in.shape[0]):
                if kind == "sliding_attention":
                    slot = t - context.shape[0]
                    if slot < 0 and anchor + j - t >= (spec.sliding_window or 0):
                        continue
                    if spec.is_causal and slot > j:
                        continue
                k = rotated(norm(wk @ keys_in[t], w[f"{p}.k_norm.weight"], eps), t, spec)
                scores.append(q @ k / math.sqrt(D))
                values.append(wv @ keys_in[t])
            heads.append(torch.softmax(torch.stack(scores), 0) @ torch.stack(values))
        out.append(w[f"{p}.o_proj.weight"] @ torch.cat(heads))
    return torch.stack(out)


def block_hidden(w: Weights, spec: DrafterSpec, context_features: Tensor, embeds_KH: Tensor) -> Tensor:
    """One block [K, H] on the features [T, F] of all tokens of its document before the anchor (position T)."""
    eps = spec.rms_norm_eps
    c = norm(context_features @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
    x = embeds_KH
    for i in range(spec.num_layers):
        p = f"layers.{i}"
        h = norm(x, w[f"{p}.input_layernorm.weight"], eps)
        x = x + attention(w, p, spec, h, c, anchor=c.shape[0])
        h = norm(x, w[f"{p}.post_attention_layernorm.weight"], eps)
        gate, up = h @ w[f"{p}.mlp.gate_proj.weight"].T, h @ w[f"{p}.mlp.up_proj.weight"].T
        x = x + (gate / (1 + torch.exp(-gate)) * up) @ w[f"{p}.mlp.down_proj.weight"].T
    return norm(x, w["norm.weight"], eps)


def pack_hidden(w: Weights, spec: DrafterSpec, ends: FrozenEnds, features_BSF: Tensor, pack: PackTensors) -> Tensor:
    """[B, N, K, H]; blocks without an anchor are zero."""
    B, N = pack.anchor_BN.shape
    zero = features_BSF.new_zeros(spec.block_size, spec.hidden_size)
    rows = []
    for b in range(B):
        documents = pack.document_BS[b].tolist()
        for a in pack.anchor_BN[b].tolist():
            if a < 0:
                rows.append(zero)
                continue
            start = documents.index(documents[a])
            ids = torch.tensor([int(pack.tokens_BS[b, a])] + [spec.mask_token_id] * (spec.block_size - 1))
            embeds = ends.embed_VH[ids] * ends.embedding_scale
            rows.append(block_hidden(w, spec, features_BSF[b, start:a], embeds))
    return torch.stack(rows).view(B, N, spec.block_size, spec.hidden_size)


def loss_sums(hidden_BNKH: Tensor, pack: PackTensors, ends: FrozenEnds, loss: LossConfig, gamma: float) -> LossSums:
    """The loss and the statistics, slot by slot."""
    total, weights, anchors, accepted, labels = hidden_BNKH.sum() * 0, 0.0, 0, 0, 0
    documents = set()
    for b, row in enumerate(pack.anchor_BN.tolist()):
        for n, a in enumerate(row):
            if a < 0:
                continue
            documents.add((b, int(pack.document_BS[b, a])))
            ces, agree = _block_ces(hidden_BNKH[b, n], pack, ends, (b, a))
            for j, ce in enumerate(ces, start=1):
                if loss.name == "dflash":
                    w = math.exp(-(j - 1) / gamma)
                else:
                    q = [(1 - loss.alpha) * math.exp(-float(c.detach())) + loss.alpha for c in ces]
                    w = sum(math.prod(q[:m]) for m in range(j, len(ces) + 1))
                total, weights = total + w * ce, weights + w
            labels += len(ces)
            anchors += bool(ces)
            accepted += (agree + 1) * bool(ces)
    denominator = weights if loss.name == "dflash" else len(documents)
    return LossSums(
        total, *(torch.tensor(float(x), dtype=torch.float64) for x in (denominator, anchors, accepted, labels))
    )


def _block_ces(hidden_KH: Tensor, pack: PackTensors, ends: FrozenEnds, at: tuple[int, int]) -> tuple[list[Tensor], int]:
    """Cross-entropies of the slots from 1 up to the first untrained label, and the length of the agreeing prefix."""
    b, a = at
    ces: list[Tensor] = []
    agree, prefix = True, 0
    for j in range(1, hidden_KH.shape[0]):
        t = a + j
        if t >= pack.tokens_BS.shape[1] or pack.document_BS[b, t] != pack.document_BS[b, a]:
            break
        if not pack.loss_mask_BS[b, t]:
            break
        z = (ends.head_VH @ hidden_KH[j]) * ends.logit_multiplier
        if ends.final_logit_softcapping is not None:
            z = ends.final_logit_softcapping * torch.tanh(z / ends.final_logit_softcapping)
        label = int(pack.tokens_BS[b, t])
        ces.append(torch.logsumexp(z, 0) - z[label])
        agree = agree and int(z.argmax()) == label
        prefix += agree
    return ces, prefix
