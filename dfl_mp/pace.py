"""Whether a run has become slower for good: a pure function of its steps. A leaf: no torch.

Steps are measured in windows of 20, each by its median, so that a checkpoint or one stalled step says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

WINDOW_STEPS, WINDOW_S = 20, 4.0
"""A window closes when it has both: three of them are a while even where a step takes milliseconds."""
WINDOWS = 3
LOW = 0.6
"""Slow is below this share of the best window. A rate that is constant within 20 % stays above 0.8 / 1.2 = 0.67."""


@dataclass(frozen=True)
class Drop:
    """`before_s` and `now_s` are median seconds of a step; `waiting` is the share of `now_s` without features."""

    before_s: float
    now_s: float
    waiting: float
    cause: str


class Pace:
    """Told of every step; answers with a Drop once when the rate has fallen below LOW of its best for WINDOWS windows.

    The level it fell to is what later windows are held against, so a recovery and the next drop are seen too. Another
    number of drafters begins anew: their rate is another.
    """

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, drafters: int) -> None:
        self._drafters = drafters
        self._best: float | None = None
        self._best_work = 0.0
        self._slow: list[tuple[float, float]] = []
        self._steps: list[tuple[float, float]] = []

    def step(self, step_s: float, data_wait_s: float, drafters: int) -> Drop | None:
        """A step was committed: its seconds, and how many of them each drafter waited for features (mean)."""
        if drafters != self._drafters:
            self._begin(drafters)
            return None  # this step began with the others
        self._steps.append((step_s, min(data_wait_s, step_s)))
        if len(self._steps) < WINDOW_STEPS or sum(s for s, _ in self._steps) < WINDOW_S:
            return None
        window = median(s for s, _ in self._steps), median(wait for _, wait in self._steps)
        self._steps = []
        return self._window(*window)

    def _window(self, step_s: float, wait_s: float) -> Drop | None:
        if self._best is None or step_s < self._best:
            self._best, self._best_work = step_s, step_s - wait_s
        if self._best / step_s >= LOW:
            self._slow = []
            return None
        self._slow.append((step_s, wait_s))
        if len(self._slow) < WINDOWS:
            return None
        now_s, wait_s = (median(column) for column in zip(*self._slow, strict=True))
        drop = Drop(self._best, now_s, wait_s / now_s, self._cause(now_s, wait_s))
        self._best, self._best_work, self._slow = now_s, now_s - wait_s, []
        return drop

    def _cause(self, now_s: float, wait_s: float) -> str:
        """The larger part of the seconds that were added."""
        assert self._best is not None
        more_work = (now_s - wait_s) - self._best_work
        if more_work > (now_s - self._best) / 2:
            return "the step itself is slower"
        return f"drafters wait for features {wait_s / now_s:.0%} of the time"
