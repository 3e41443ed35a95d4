"""Words for people. A leaf: no torch."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """`1 target`, `2 targets`"""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
