"""When a dead worker is started again: pure, with the clock as an argument."""

from __future__ import annotations

from collections.abc import Sequence

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0


def restart_at(deaths: Sequence[float], budget: int) -> float | None:
    """When to start the worker again; None when its budget is spent.

    deaths: times of its deaths since the last committed step, oldest first, the one at hand included. The first costs
    no pause, then 0.5 s, 1 s, 2 s ... up to 10 s.

    >>> restart_at([100.0], 3), restart_at([100.0, 101.0], 3), restart_at([1.0, 2.0], 1)
    (100.0, 101.5, None)
    """
    if len(deaths) > budget:
        return None
    if len(deaths) == 1:
        return deaths[-1]
    return deaths[-1] + min(FIRST_PAUSE_S * 2.0 ** (len(deaths) - 2), LONGEST_PAUSE_S)
