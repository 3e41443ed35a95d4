"""Which share of their time workers work, out of what they say of themselves: pure."""

from __future__ import annotations

from typing import Any

from dfl_mp.messages import Progress, name_of, role_of

LOOKED_S = 5.0


class Seen:
    """Snapshots of a run's workers: when, and what each had worked since its process began."""

    def __init__(self) -> None:
        self.samples: dict[str, list[tuple[float, int, float]]] = {}
        """Incarnation -> (time, step, busy seconds)."""
        self.slots: list[tuple[float, int, int]] = []
        """(time, slots leased or full, slots)"""
        self.newest: Progress | None = None

    def add(self, now: float, progress: Progress) -> None:
        self.newest = progress
        self.slots.append((now, progress.ready_slots + progress.computing_packs, progress.num_slots))
        for line in progress.workers:
            if line.status is not None:
                sample = (now, line.status.step, line.status.busy_s)
                self.samples.setdefault(line.worker, []).append(sample)

    def busy(self, lines: list[dict[str, Any]], skip: int, since: float) -> dict[str, float]:
        """Worker -> share, of the first `skip` steps nothing; `since` is when they were over."""
        found = {}
        for worker, samples in sorted(self.samples.items()):
            by_role = by_steps(samples, lines, skip) if role_of(worker) == "drafter" else by_slope(samples, since)
            if by_role is not None:
                found[name_of(worker)] = round(min(1.0, by_role), 4)
        return found


def by_steps(samples: list[tuple[float, int, float]], lines: list[dict[str, Any]], skip: int) -> float | None:
    """A drafter's share: it counts what it worked step by step, so whole steps are held against their seconds.

    >>> by_steps([(0.0, 1, 0.5), (9.0, 2, 1.4), (9.5, 3, 2.2)], [{"step_s": 1.0}] * 3, skip=1)
    0.85
    """
    at = {step: busy for _, step, busy in samples if skip <= step <= len(lines)}
    if len(at) < 2:
        return None
    first, last = min(at), max(at)
    spent = sum(line["step_s"] for line in lines[first:last])
    return round((at[last] - at[first]) / spent, 6) if spent > 0 else None


def by_slope(samples: list[tuple[float, int, float]], since: float) -> float | None:
    """A target's share: the slope of busy seconds over time, by least squares over the moments at which they changed.
    None where less than LOOKED_S were seen: they change once a second at most.

    >>> by_slope([(0.0, 0, 0.0), (4.0, 0, 2.0), (4.2, 0, 2.0), (8.0, 0, 4.0)], since=0.0)
    0.5
    """
    looked = [(now, busy) for now, _, busy in samples if now >= since]
    if not looked or looked[-1][0] - looked[0][0] < LOOKED_S:
        return None
    changed: list[tuple[float, float]] = []
    for now, busy in looked:
        if not changed or busy != changed[-1][1]:
            changed.append((now, busy))
    points = changed[1:] if len(changed) > 3 else changed
    if len(points) < 2:
        return 0.0
    mean_t = sum(t for t, _ in points) / len(points)
    mean_b = sum(b for _, b in points) / len(points)
    spread = sum((t - mean_t) ** 2 for t, _ in points)
    return round(sum((t - mean_t) * (b - mean_b) for t, b in points) / spread, 6)


def tokens_per_s(lines: list[dict[str, Any]]) -> float:
    """Over the seconds of these steps."""
    return sum(line["tokens"] for line in lines) / max(1e-9, sum(line["step_s"] for line in lines))


def waiting(lines: list[dict[str, Any]]) -> float:
    """Share of the steps' seconds in which drafters (their mean) waited for features."""
    return sum(line["data_wait_s"] for line in lines) / max(1e-9, sum(line["step_s"] for line in lines))
