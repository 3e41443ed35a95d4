from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings

from dfl_mp.model.blocks import default_gamma, make_blocks
from dfl_mp.model.shapes import PackTensors
from tests.unit.model_cases import VOCAB, one_row, packs

MASK = VOCAB - 1


@pytest.mark.parametrize(("size", "gamma"), [(16, 7), (10, 5), (8, 4), (9, 4.5), (13, 6), (19, 8), (2, 1), (4, 2)])
def test_default_gamma(size: int, gamma: float) -> None:
    assert default_gamma(size) == pytest.approx(gamma)


@given(packs)
@settings(deadline=None, max_examples=60)
def test_blocks_by_definition(pack: PackTensors) -> None:
    K, gamma = 4, 3.0
    blocks = make_blocks(pack, K, MASK, gamma)
    documents = set()
    for b, row in enumerate(pack.anchor_BN.tolist()):
        for n, a in enumerate(row):
            assert blocks.live_BN[b, n] == (a >= 0)
            assert not blocks.valid_BNK[b, n, 0]
            if a < 0:
                assert not blocks.valid_BNK[b, n].any()
                assert not blocks.weight_BNK[b, n].any()
                continue
            documents.add((b, int(pack.document_BS[b, a])))
            assert blocks.ids_BNK[b, n].tolist() == [int(pack.tokens_BS[b, a])] + [MASK] * (K - 1)
            first = int(pack.position_BS[b, a])
            assert blocks.positions_BNK[b, n].tolist() == list(range(first, first + K))
            valid = True
            for j in range(1, K):
                t = a + j
                valid = valid and t < pack.tokens_BS.shape[1] and bool(pack.loss_mask_BS[b, t])
                valid = valid and bool(pack.document_BS[b, t] == pack.document_BS[b, a])
                assert blocks.valid_BNK[b, n, j] == valid
                assert float(blocks.weight_BNK[b, n, j]) == pytest.approx(valid * math.exp(-(j - 1) / gamma))
                assert blocks.labels_BNK[b, n, j] == (pack.tokens_BS[b, t] if valid else 0)
    assert int(blocks.num_documents) == len(documents)


def test_short_answer_at_the_end_of_a_row_keeps_its_labels() -> None:
    pack = one_row([10, 6], [11, 14], row_tokens=16)
    blocks = make_blocks(pack, 8, MASK, 4.0)
    assert blocks.labels_BNK[0, 0, 1:5].tolist() == pack.tokens_BS[0, 12:16].tolist()
    assert blocks.valid_BNK[0].sum(-1).tolist() == [4, 1]
    assert torch.count_nonzero(blocks.weight_BNK[0, 0]) == 4


def test_no_label_crosses_a_document() -> None:
    blocks = make_blocks(one_row([6, 10], [3], row_tokens=16), 8, MASK, 4.0)
    assert blocks.valid_BNK[0, 0].tolist() == [False, True, True] + [False] * 5


def test_block_stops_at_the_first_untrained_label() -> None:
    pack = one_row([16], [3], row_tokens=16)
    pack.loss_mask_BS[0, 6] = False
    blocks = make_blocks(pack, 8, MASK, 4.0)
    assert blocks.valid_BNK[0, 0].tolist() == [False, True, True] + [False] * 5
