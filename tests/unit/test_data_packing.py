from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfl_mp.data.anchors import draw_anchors, eligible_positions
from dfl_mp.data.packing import SLOTS_USED, choose_slots, pack_epoch, plan_rows, split_slots
from dfl_mp.data.packs import META, Pack, PackShape, PackStore
from dfl_mp.data.tokenize import Document
from dfl_mp.errors import CheckpointError

S = 48


@st.composite
def corpora(draw) -> list[Document]:
    """Documents of 2 to S tokens with at least one eligible position each; tokens and ids are all different."""
    documents = []
    for i in range(draw(st.integers(1, 25))):
        length = draw(st.integers(2, S))
        mask = np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)))
        first = draw(st.integers(0, length - 2))
        mask[first : first + 2] = True
        documents.append(Document(np.arange(length, dtype=np.int32) + 1000 * (i + 1), mask, 10 + 3 * i))
    return documents


def make(documents: list[Document], folder: Path, slots: int, seed: int = 0, cap: int = 8, R: int = 2) -> PackStore:
    lengths = np.array([len(d.tokens) for d in documents])
    wanted = np.minimum([len(eligible_positions(d.loss_mask)) for d in documents], cap)
    rows = plan_rows(lengths, wanted, S, slots, (seed, None, 4))
    rows = rows.first(len(rows) // R * R)
    folder.mkdir(parents=True, exist_ok=True)
    PackStore.write(folder, documents, rows, PackShape(seed, S, R, slots, len(rows) // R))
    return PackStore.open(folder)


def same(a: Pack, b: Pack) -> bool:
    return all(
        np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(vars(a).values(), vars(b).values(), strict=True)
    )


def items(store: PackStore):
    """(pack, row, document id, epoch, slice of the row) of everything in a store."""
    for n in range(len(store)):
        pack = store[n]
        for r, ids in enumerate(store.documents_of(n)):
            for index, document_id in enumerate(ids):
                at = np.flatnonzero(pack.document_RS[r] == index)
                epoch = int(store._arrays["row_epochs"][n * store.shape.rows_per_pack + r])
                yield pack, r, document_id, epoch, slice(at[0], at[-1] + 1)


def anchors_in(pack: Pack, r: int, where: slice) -> list[int]:
    return [int(a) - where.start for a in pack.anchor_RN[r] if where.start <= a < where.stop]


@settings(deadline=None, max_examples=40)
@given(corpora(), st.integers(1, 40), st.integers(0, 3))
def test_a_pack_is_what_it_says(tmp_path_factory, documents, slots: int, seed: int) -> None:
    store = make(documents, tmp_path_factory.mktemp("packs"), slots, seed)
    by_id = {document.id: document for document in documents}
    for pack, r, document_id, _, where in items(store):
        document = by_id[document_id]
        length = where.stop - where.start
        assert pack.tokens_RS[r, where].tolist() == document.tokens.tolist()
        assert pack.loss_mask_RS[r, where].tolist() == document.loss_mask.tolist()
        assert pack.position_RS[r, where].tolist() == list(range(length))
        anchors = anchors_in(pack, r, where)
        assert 1 <= len(anchors) <= 8
        assert all(a + 1 < length and document.loss_mask[a] and document.loss_mask[a + 1] for a in anchors)
    for n in range(len(store)):
        pack = store[n]
        padding = pack.document_RS < 0
        assert not pack.tokens_RS[padding].any()
        assert not pack.loss_mask_RS[padding].any()
        assert not pack.position_RS[padding].any()
        for anchor_N in pack.anchor_RN:
            used = anchor_N[anchor_N >= 0]
            assert len(used) >= 1
            assert (np.diff(used) > 0).all()
            assert (anchor_N[len(used) :] == -1).all()


@settings(deadline=None, max_examples=25)
@given(corpora(), st.integers(1, 30), st.integers(0, 3))
def test_a_pack_is_a_pure_function_of_seed_and_number(tmp_path_factory, documents, slots: int, seed: int) -> None:
    folder = tmp_path_factory.mktemp("packs")
    first, second = make(documents, folder / "a", slots, seed), make(documents, folder / "b", slots, seed)
    backwards = {n: first[n] for n in reversed(range(len(first)))}
    assert all(same(backwards[n], second[n]) and same(first[n], second[n]) for n in range(len(first)))


def test_another_seed_is_another_order_and_other_anchors(tmp_path: Path) -> None:
    documents = [Document(np.arange(20, dtype=np.int32), np.ones(20, bool), i) for i in range(30)]
    a, b = make(documents, tmp_path / "a", 16, 0), make(documents, tmp_path / "b", 16, 1)
    assert not all(same(a[n], b[n]) for n in range(len(a)))
    epochs = {}
    for pack, r, document_id, epoch, where in items(a):
        epochs.setdefault(document_id, {})[epoch] = anchors_in(pack, r, where)
    assert all(len({tuple(anchors) for anchors in drawn.values()}) > 1 for drawn in epochs.values() if len(drawn) == 4)


@settings(deadline=None, max_examples=25)
@given(corpora(), corpora(), st.integers(2, 30))
def test_anchors_do_not_depend_on_neighbours(tmp_path_factory, documents, others, slots: int) -> None:
    """Beside other documents one draws from the same permutation: of two quotas, the smaller draw is in the larger."""
    others = [Document(d.tokens, d.loss_mask, d.id + 10_000) for d in others]
    folder = tmp_path_factory.mktemp("packs")
    drawn: dict[tuple[int, int], list[set[int]]] = {}
    for store in (make(documents, folder / "a", slots), make([*others, *documents], folder / "b", slots)):
        for pack, r, document_id, epoch, where in items(store):
            drawn.setdefault((document_id, epoch), []).append(set(anchors_in(pack, r, where)))
    for pair in drawn.values():
        small, large = min(pair, key=len), max(pair, key=len)
        assert small <= large


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(1, S), min_size=1, max_size=200), st.integers(1, 9), st.integers(0, 5))
def test_an_epoch_holds_every_document_once_and_rows_hold_their_limits(lengths, most: int, epoch: int) -> None:
    lengths_D = np.array(lengths)
    rows = pack_epoch(lengths_D, S, most, (0, epoch))
    assert sorted(d for row in rows for d in row) == list(range(len(lengths)))
    assert all(lengths_D[row].sum() <= S and 1 <= len(row) <= most for row in rows)


def test_rows_are_nearly_full_and_epochs_differ() -> None:
    lengths = np.random.default_rng(0).integers(10, 600, 3000)
    rows = [pack_epoch(lengths, 1024, 10_000, (0, epoch)) for epoch in (0, 1)]
    assert lengths.sum() / (1024 * len(rows[0])) > 0.98
    neighbours = [{frozenset(row) for row in epoch} for epoch in rows]
    assert len(neighbours[0] & neighbours[1]) < 0.05 * len(rows[0])


def test_rows_of_an_epoch_are_not_sorted_by_fullness() -> None:
    lengths = np.random.default_rng(0).integers(10, 600, 3000)
    fill = np.array([lengths[row].max() for row in pack_epoch(lengths, 1024, 10_000, (0, 0))])
    assert abs(np.corrcoef(fill, np.arange(len(fill)))[0, 1]) < 0.15


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 512), min_size=1, max_size=20), st.integers(20, 600))
def test_slots_are_split_fairly(wanted, slots: int) -> None:
    wanted_D = np.array(wanted)
    share = split_slots(wanted_D, slots)
    assert share.sum() == min(slots, wanted_D.sum())
    assert (share >= 1).all() and (share <= wanted_D).all()
    if wanted_D.sum() > slots:
        exact = 1 + (wanted_D - 1) * (slots - len(wanted)) / max(1, (wanted_D - 1).sum())
        assert (np.abs(share - exact) < 1).all()


def test_split_example() -> None:
    assert split_slots(np.array([10, 30]), 20).tolist() == [5, 15]
    assert split_slots(np.array([1, 500, 500]), 3).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("block_size", "step"), [(16, 32), (8, 32), (4, 32), (10, 64), (7, 128)])
def test_the_number_of_slots_fits_the_kernels(block_size: int, step: int) -> None:
    slots = choose_slots(np.full(100, 47), [list(range(at, at + 10)) for at in range(0, 100, 10)], block_size)
    assert slots % step == 0 and slots * block_size % 128 == 0
    assert slots <= 470 / SLOTS_USED < slots + step
    assert choose_slots(np.array([1]), [[0]], block_size) == step


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 4000), min_size=1, max_size=30), st.sampled_from([16, 10, 7]))
def test_no_more_slots_would_be_used(wanted, block_size: int) -> None:
    """As a search through all numbers finds: the most of which 97 % are used, or the fewest there are."""
    step = {16: 32, 10: 64, 7: 128}[block_size]
    numbers = np.arange(step, 4500, step)
    used = np.minimum(np.array(wanted)[:, None], numbers).sum(0) / (numbers * len(wanted))
    slots = choose_slots(np.array(wanted), [[document] for document in range(len(wanted))], block_size)
    assert slots == max(numbers[used >= SLOTS_USED], default=step)


def test_one_long_document_in_half_of_the_rows_takes_no_slots_from_the_drafter() -> None:
    assert choose_slots(np.array([100, 250, 250]), [[0], [1, 2]], 16) == 96


def test_rows_of_many_short_documents_keep_them_all() -> None:
    """Documents of 10 tokens with a pair each beside one long one: 40 slots used, but 400 documents in a row."""
    rows = [list(range(at, at + 400)) for at in range(0, 1200, 400)] + [[1200], [1201], [1202]]
    assert choose_slots(np.array([1] * 1200 + [40] * 3), rows, 16) == 416


def test_slots_of_chats_are_used() -> None:
    """Lengths spread as in chats, 512 anchors a document at most: rows want 512 to 2,000 anchors."""
    random = np.random.default_rng(0)
    lengths_D = np.clip(random.lognormal(6.85, 0.8, 3000), 16, 4096).astype(np.int64)
    wanted_D = np.clip(lengths_D * 6 // 10, 1, 512)
    slots = choose_slots(wanted_D, pack_epoch(lengths_D, 4096, 3000, (0, 0)), 16)
    rows = plan_rows(lengths_D, wanted_D, 4096, slots, (0, None, 2))
    assert rows.quotas.sum() / (len(rows) * slots) > SLOTS_USED - 0.005
    assert lengths_D[rows.documents].sum() / (len(rows) * 4096) > 0.97


def test_the_end_of_a_short_answer_at_a_rows_end_is_anchored(tmp_path: Path) -> None:
    """6 trained tokens end the row: blocks of 16 run past it, and all five positions are drawn."""
    mask = np.zeros(S, bool)
    mask[-6:] = True
    store = make([Document(np.arange(S, dtype=np.int32), mask, 1)], tmp_path, 32)
    assert store[0].anchor_RN[0, :6].tolist() == [S - 6, S - 5, S - 4, S - 3, S - 2, -1]


def test_a_draw_is_ascending_without_repetition_and_nested() -> None:
    eligible = eligible_positions(np.array([0, 1, 1, 0, 1, 1, 1, 1], bool))
    assert eligible.tolist() == [1, 4, 5, 6]
    small, large = draw_anchors(eligible, 2, (0, 0, 7)), draw_anchors(eligible, 3, (0, 0, 7))
    assert set(small) < set(large) < set(eligible)
    assert (np.diff(large) > 0).all()
    wide = np.arange(100)
    assert draw_anchors(wide, 9, (0, 0, 7)).tolist() != draw_anchors(wide, 9, (0, 1, 7)).tolist()
    assert draw_anchors(wide, 9, (0, 0, 7)).tolist() != draw_anchors(wide, 9, (0, 0, 8)).tolist()


def test_every_position_is_drawn_equally_often() -> None:
    counts = np.zeros(20)
    for document in range(2000):
        counts[draw_anchors(np.arange(20), 5, (3, 0, document))] += 1
    assert np.abs(counts / 2000 - 0.25).max() < 0.05


def test_rows_wanted_take_as_many_epochs_as_needed() -> None:
    lengths = np.array([40, 40, 40])
    rows = plan_rows(lengths, np.array([3, 3, 3]), S, 8, (0, 7, 1))
    assert rows.epochs.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert sorted(rows.documents[3:6].tolist()) == [0, 1, 2]


def test_outside_the_store_and_torn_folders(tmp_path: Path) -> None:
    documents = [Document(np.arange(20, dtype=np.int32), np.ones(20, bool), i) for i in range(9)]
    store = make(documents, tmp_path, 16)
    for n in (-1, len(store)):
        with pytest.raises(IndexError):
            store[n]
    tokens, meta = tmp_path / "tokens.npy", tmp_path / META
    whole = tokens.read_bytes()
    for torn in (whole[:-4], whole[:20], b""):
        tokens.write_bytes(torn)
        with pytest.raises(CheckpointError, match=r"tokens\.npy"):
            PackStore.open(tmp_path)
    np.save(tokens, np.zeros(3, np.int32))
    with pytest.raises(CheckpointError, match=r"tokens\.npy"):
        PackStore.open(tmp_path)
    tokens.write_bytes(whole)
    PackStore.open(tmp_path)
    for text in ("{", "[]", json.dumps({"format": 99}), json.dumps({"format": 1, "shape": {}, "arrays": {}})):
        meta.write_text(text)
        with pytest.raises(CheckpointError, match=META):
            PackStore.open(tmp_path)
    meta.unlink()
    with pytest.raises(CheckpointError, match=META):
        PackStore.open(tmp_path)


def test_a_pack_of_4096_tokens_is_made_in_milliseconds(tmp_path: Path) -> None:
    documents = [Document(np.zeros(340, np.int32), np.ones(340, bool), i) for i in range(48)]
    rows = plan_rows(np.full(48, 340), np.full(48, 339), 4096, 1024, (0, 4, 1))
    PackStore.write(tmp_path, documents, rows, PackShape(0, 4096, 1, 1024, 4))
    store = PackStore.open(tmp_path)
    spent = []
    for _ in range(10):
        began = time.perf_counter()
        store[1]
        spent.append(time.perf_counter() - began)
    assert min(spent) < 0.005
