"""Numbers as people read them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from dfl_mp.words import plural as plural

BARS = "▁▂▃▄▅▆▇█"


def thousands(value: float) -> str:
    """`950`, `18.2K`, `1.3M`"""
    for size, unit in ((1e6, "M"), (1e3, "K")):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def clock(seconds: float) -> str:
    """`1:42`, `2:03:07`"""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def number(value: float | None, digits: int = 3) -> str:
    """`3.210`, or `-` when it is not known."""
    return "-" if value is None else f"{value:.{digits}f}"


def ends(values: Sequence[float], share: float = 0.05) -> tuple[float, float] | None:
    """Means of the first and the last `share` of the values, of one at least; None when there is none.

    >>> ends([10.0, 9.0, 2.0, 1.0])
    (10.0, 1.0)
    """
    if not values:
        return None
    n = max(1, math.ceil(share * len(values)))
    return sum(values[:n]) / n, sum(values[-n:]) / n


def buckets(values: Sequence[float], most: int) -> list[float]:
    """At most `most` means over equal stretches.

    >>> buckets([1.0, 3.0, 5.0, 7.0, 9.0], 2)
    [2.0, 7.0]
    """
    n = min(most, len(values))
    cuts = [i * len(values) // n for i in range(n + 1)] if n > 0 else []
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]


def sparkline(values: Sequence[float], width: int, log: bool = False) -> str:
    """One bar a value, the lowest value the lowest bar. `log`: heights by the logarithm of positive values.

    Of many values the highest and the lowest twentieth are cut off, so that a wild beginning hides nothing.

    >>> sparkline([1.0, 2.0, 3.0, 4.0], 10)
    '▁▃▆█'
    """
    means = buckets(values, width)
    if log and all(value > 0 for value in means):
        means = [math.log(value) for value in means]
    if not means:
        return ""
    ordered, cut = sorted(means), len(means) // 20
    low, high = ordered[cut], ordered[-1 - cut]
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((min(max(value, low), high) - low) * scale)] for value in means)


def bar(share: float, width: int) -> tuple[str, str]:
    """A progress bar as its done and its open part."""
    done = round(min(1.0, max(0.0, share)) * width)
    return "━" * done, "─" * (width - done)
