"""Lines of `metrics.jsonl`, which is the ledger: one per committed step. A leaf: no torch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from dfl_mp.messages import Statistics, role_of

WINDOW_S = 20.0
SMOOTH_STEPS = 20
"""Steps in the means that people read."""


def finite(x: float) -> float | None:
    """JSON has no NaN."""
    return x if math.isfinite(x) else None


def mean_of(lines: Iterable[Mapping[str, Any]], field: str) -> float | None:
    """Mean of a field over some lines, those without a number left out; None when there is none.

    >>> mean_of([{"loss": 2.0}, {"loss": None}, {"loss": 4.0}], "loss")
    3.0
    """
    numbers = [line[field] for line in lines if isinstance(line.get(field), int | float)]
    return sum(numbers) / len(numbers) if numbers else None


class Rates:
    """Tokens and steps per second over the last seconds, the clock an argument.

    The first step, which waits for the models, counts only while it is the only one.

    >>> rates = Rates(now=0.0)
    >>> rates.committed(tokens=100.0, now=2.0)
    (2.0, 50.0)
    """

    def __init__(self, now: float) -> None:
        self._recent: deque[tuple[float, float]] = deque([(now, 0.0)])
        self._committed = 0

    def committed(self, tokens: float, now: float) -> tuple[float, float]:
        """A step was committed: its duration, and tokens per second over the window."""
        step_s = max(1e-9, now - self._recent[-1][0])
        self._recent.append((now, tokens))
        self._committed += 1
        while len(self._recent) > 2 and (self._committed == 2 or self._recent[0][0] < now - WINDOW_S):
            self._recent.popleft()
        return step_s, self.tokens_per_s(now)

    def tokens_per_s(self, now: float) -> float:
        """Over the window; 0 before the first step."""
        tokens = sum(t for _, t in list(self._recent)[1:])
        return tokens / max(1e-9, now - self._recent[0][0])

    def steps_per_s(self, now: float) -> float:
        """Over the window; 0 before the first step."""
        return (len(self._recent) - 1) / max(1e-9, now - self._recent[0][0])


class Busy:
    """How much of their time the workers of each role are at work, from the first committed step to the last.

    A worker is counted between its own heartbeats, so one that starts again is not counted while it does.

    >>> busy = Busy()
    >>> busy.heard("target-0.1", busy_s=5.0, now=10.0)
    >>> busy.committed(last=False)
    >>> busy.heard("target-0.1", busy_s=8.0, now=14.0)
    >>> busy.share("target"), busy.share("drafter")
    (0.75, None)
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[float, float]] = {}
        self._newest: dict[str, tuple[float, float]] = {}
        self._open: bool | None = None

    def heard(self, worker: str, busy_s: float, now: float) -> None:
        """A heartbeat: what the worker has worked since its process began."""
        if self._open is None:
            self._first[worker] = (now, busy_s)
        elif self._open:
            self._first.setdefault(worker, (now, busy_s))
            self._newest[worker] = (now, busy_s)

    def committed(self, last: bool) -> None:
        """A step was committed; after the last one nothing counts."""
        self._open = not last

    def share(self, role: str) -> float | None:
        """Over all workers of the role; None before two heartbeats of one."""
        mine = [worker for worker in self._newest if role_of(worker) == role]
        spent = sum(self._newest[worker][0] - self._first[worker][0] for worker in mine)
        worked = sum(self._newest[worker][1] - self._first[worker][1] for worker in mine)
        return min(1.0, worked / spent) if spent > 0 else None


def line(
    step: int, packs: tuple[int, ...], s: Statistics, group: tuple[int, int], rates: tuple[float, float]
) -> dict[str, Any]:
    """The line of a step; `group` is (drafters, generation), `rates` what `Rates.committed` gave.

    `data_wait_s` is the mean over the drafters.
    """
    drafters, generation = group
    return {
        "step": step,
        "loss": finite(s.loss),
        "lr": s.lr,
        "tokens": round(s.tokens),
        "trained_labels": round(s.trained_tokens),
        "tokens_per_s": rates[1],
        "accept_len_est": finite(s.accept_len_est),
        "grad_norm": finite(s.grad_norm),
        "drafters": drafters,
        "generation": generation,
        "data_wait_s": s.data_wait_s / max(1, drafters),
        "step_s": rates[0],
        "skipped": s.skipped,
        "packs": list(packs),
    }
