"""The figures of a `prepare`, and the few lines that people read of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from dfl_mp.data.packing import Rows
from dfl_mp.data.packs import PackShape
from dfl_mp.data.tokenize import Document, Tally
from dfl_mp.words import plural


def token_counts(documents: list[Document], tally: Tally) -> dict[str, Any]:
    tokens = sum(len(document.tokens) for document in documents)
    trained = sum(int(document.loss_mask.sum()) for document in documents)
    return {
        "documents": len(documents),
        "tokens": tokens,
        "trained_tokens": trained,
        "trained_share": trained / tokens,
        "trained_turns": sum(int((np.diff(d.loss_mask.astype(np.int8), prepend=0) == 1).sum()) for d in documents),
        "turns_without_end": tally.turns_without_end,
        "cut_documents": tally.cut_documents,
        "cut_tokens": tally.cut_tokens,
    }


def anchor_counts(rows: Rows, shape: PackShape, eligible_D: np.ndarray, most_per_document: int) -> dict[str, Any]:
    """Over the whole run: eligible positions visited, what the two limits drop of them, and how full the slots are."""
    eligible = eligible_D[rows.documents]
    wanted = np.minimum(eligible, most_per_document)
    used = int(rows.quotas.sum())
    return {
        "rows_in_run": len(rows),
        "epochs": len(rows.documents) / len(eligible_D),
        "documents_per_row": len(rows.documents) / len(rows),
        "packs": shape.num_packs,
        "anchors_per_row": shape.anchors_per_row,
        "anchors": used,
        "slots_used": used / (len(rows) * shape.anchors_per_row),
        "eligible": int(eligible.sum()),
        "dropped_by_max_anchors_per_document": int((eligible - wanted).sum()),
        "dropped_by_anchors_per_row": int(wanted.sum()) - used,
    }


def describe(report: dict[str, Any]) -> list[str]:
    """The report of `prepare_data` as lines."""
    lines = [
        f"{report['path']}: {plural(report['documents'], 'document')}, {plural(report['tokens'], 'token')}, "
        f"{report['trained_share']:.1%} of them trained in {plural(report['trained_turns'], 'turn')}",
    ]
    if report["cut_documents"]:
        cut = plural(report["cut_documents"], "document")
        lines.append(f"cut at the end: {cut}, {plural(report['cut_tokens'], 'token')} lost")
    if report["turns_without_end"]:
        lines.append(f"{plural(report['turns_without_end'], 'answer')} without an end-of-turn token to learn")
    lines += _skips("skipped", "rows", report["rows"])
    eligible = max(report["eligible"], 1)
    lines += [
        f"{plural(report['rows_in_run'], 'row')} {report['fill']:.1%} full, "
        f"{report['documents_per_row']:.1f} documents a row; "
        f"{plural(report['packs'], 'pack')}, {plural(report['steps'], 'step')}, {report['epochs']:.2f} epochs",
        f"{plural(report['anchors_per_row'], 'anchor slot')} a row, {report['slots_used']:.1%} used; "
        "of the eligible positions "
        f"{report['dropped_by_max_anchors_per_document'] / eligible:.1%} dropped by data.max_anchors_per_document, "
        f"{report['dropped_by_anchors_per_row'] / eligible:.1%} by the slots",
        f"mask token {report['mask_token']}",
    ]
    if fuller := report.get("fuller_row"):
        lines.append(f"data.row_tokens={fuller[0]} would make rows {fuller[1]:.1%} full")
    if report["prompts"]["lines"]:
        lines.append(f"{plural(report['prompts']['kept'], 'prompt')} held out")
        lines += _skips("left out", "prompts", report["prompts"])
    return lines


def _skips(verb: str, noun: str, rows: dict[str, Any]) -> list[str]:
    if not rows["skipped"]:
        return []
    reasons = ", ".join(
        f"{reason}: {count:,}" for reason, count in sorted(rows["skipped"].items(), key=lambda r: -r[1])
    )
    first = "; ".join(rows["first"][:3])
    return [f"{verb} {sum(rows['skipped'].values()):,} of {rows['lines']:,} {noun} ({reasons}); first: {first}"]
