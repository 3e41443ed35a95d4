"""What the coordinator refused, as events: the first at once, then one line for many, ever more rarely, so that nobody
can fill the disk with noise. Pure; the clock is an argument."""

from __future__ import annotations

from typing import Any

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 600.0
REASON_CHARS = 200
REASONS = 5
"""Different reasons that one line names."""


class Refusals:
    """`take` returns the event's fields when a line is due, else None; `due` what was held back for long enough.

    >>> refusals = Refusals()
    >>> refusals.take("noise", 0.0), refusals.take("noise", 0.1), refusals.due(0.5)
    ({'reason': 'noise', 'count': 1, 'total': 1}, None, None)
    >>> refusals.due(1.0)
    {'reason': 'noise', 'count': 1, 'total': 2}
    """

    def __init__(self) -> None:
        self.total = 0
        self._count = 0
        self._reasons: list[str] = []
        self._pause = 0.0
        self._next = 0.0

    def take(self, reason: str, now: float) -> dict[str, Any] | None:
        """Count one."""
        self.total += 1
        self._count += 1
        reason = reason[:REASON_CHARS]
        if reason not in self._reasons and len(self._reasons) < REASONS:
            self._reasons.append(reason)
        return self.due(now)

    def due(self, now: float) -> dict[str, Any] | None:
        """The line for all since the last one, if there are any and its time has come; each pause is twice the one
        before, and short again after a quiet one."""
        if not self._count or now < self._next:
            return None
        quiet = now >= self._next + LONGEST_PAUSE_S
        self._pause = FIRST_PAUSE_S if quiet or not self._pause else min(2 * self._pause, LONGEST_PAUSE_S)
        self._next = now + self._pause
        return self.flush()

    def flush(self) -> dict[str, Any] | None:
        """The line now, if there is anything to say."""
        if not self._count:
            return None
        first, *others = self._reasons
        line = {"reason": first, "count": self._count, "total": self.total}
        self._count, self._reasons = 0, []
        return line | ({"also": others} if others else {})
