"""The live screen of a run: a scene becomes lines, nothing else happens here.

Only the sixteen colours of the terminal are named, so that light and dark backgrounds both work.
"""

from __future__ import annotations

import re
from collections import Counter

from rich.text import Text

from dfl_mp.messages import Progress
from launcher.happenings import last, rings
from launcher.snapshot import Phase, Worker, doing_of, state_of
from launcher.tail import Rate, Scene
from launcher.words import bar, clock, number, sparkline, thousands

STAGES: tuple[Phase, ...] = ("prepare", "train", "evaluate")
STATE_STYLE = {"working": "green", "idle": "", "down": "bold red"}
OTHER_STATE = "cyan"
SQUARES = 16
"""As many slots are drawn one by one."""
EVENTS = 5
LABEL = 16
TREND = 48
"""Columns of a trend at most: with more of them each would be the mean of fewer noisy steps."""


def frame(scene: Scene, width: int, height: int) -> Text:
    """The whole screen, no wider than `width` and, while there is room for a few workers, no higher than `height`."""
    lines = [_title(scene, width), _stages(scene, width), _progress(scene, width)]
    phase = scene.snapshot.phase
    if phase in ("prepare", "evaluate"):
        lines += [Text(scene.snapshot.message)]
    if scene.loss or phase in ("train", "stopping"):
        lines += [Text(), *_series(scene, width)]
    if scene.snapshot.workers and phase in ("train", "stopping"):
        lines += [_pipeline(scene, width), Text()]
        lines += _workers(scene, max(3, height - len(lines) - 4), width)
    events = last(scene.events, min(EVENTS, max(1, height - len(lines) - 2)))
    lines += [Text()] if events else []
    lines += [Text.assemble(f"{at}  ", (text, style)) for at, text, style in events]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True).join(lines)


def _title(scene: Scene, width: int) -> Text:
    return _apart(Text(scene.run, "bold"), Text(clock(scene.snapshot.time - scene.snapshot.began)), width)


def _stages(scene: Scene, width: int) -> Text:
    phase = "train" if scene.snapshot.phase == "stopping" else scene.snapshot.phase
    at = STAGES.index(phase) if phase in STAGES else len(STAGES)
    left = Text()
    for i, stage in enumerate(STAGES):
        mark, style = ("✓", "green") if i < at else ("●", "bold cyan") if i == at else ("·", "")
        left.append(f"{mark} {stage}  ", style)
    for right in _where(scene):
        if left.cell_len + len(right) <= width:
            return _apart(left, Text(right, "bold"), width)
    return left


def _where(scene: Scene) -> list[str]:
    """How far the phase is, the longest wording first."""
    phase, p = scene.snapshot.phase, scene.snapshot.progress
    if phase in ("over", "prepare", "evaluate"):
        return []
    if phase == "stopping":
        return ["stopping: a checkpoint is saved first", "stopping"] if p and p.step else ["stopping"]
    if p is None or p.step == 0:
        return ["models are loaded and compiled", "starting"]
    step = f"step {p.step}/{p.num_steps}"
    eta = "" if not p.eta_s else f"  ETA {clock(p.eta_s)}"
    return [f"{step}  {p.step / max(1, p.num_steps):.0%}{eta}", f"{step}{eta}", step]


def _progress(scene: Scene, width: int) -> Text:
    done, left = bar(_share(scene), width)
    return Text.assemble((done, "green"), left)


def _share(scene: Scene) -> float:
    """Of the phase at hand."""
    snapshot = scene.snapshot
    if snapshot.phase in ("train", "stopping"):
        return snapshot.progress.step / max(1, snapshot.progress.num_steps) if snapshot.progress else 0.0
    if snapshot.phase == "over":
        return 1.0
    found = re.search(r"\b([\d,]+) of ([\d,]+)\b", snapshot.message)
    done, total = (int(part.replace(",", "") or 0) for part in found.groups()) if found else (0, 1)
    return done / max(1, total)


def _series(scene: Scene, width: int) -> list[Text]:
    p = scene.snapshot.progress
    room = min(TREND, max(0, width - LABEL - 9 - 14))
    rows = []
    for name, now, values, log in (
        ("loss", p.loss if p else None, scene.loss, True),
        ("accept_len_est", p.accept_len_est if p else None, scene.accept, False),
    ):
        row = Text.assemble(f"{name:<{LABEL}}", (f"{number(now):<9}", "bold"))
        line = sparkline(values, room, log)
        row.append(line, "cyan")
        rows.append(row.append(f"  from {values[0]:.3f}" if values else ""))
    rate = thousands(p.tokens_per_s) if p and p.step else "-"
    row = Text.assemble(f"{'tokens/s':<{LABEL}}", (f"{rate:<9}", "bold"))
    return [*rows, row.append("both are means of 20 steps" if scene.loss else "")]


def _pipeline(scene: Scene, width: int) -> Text:
    p = scene.snapshot.progress
    if p is None:
        return Text(f"{'packs':<{LABEL}}-")
    full = f"{'■' * p.ready_slots}{'□' * (p.num_slots - p.ready_slots)} " if 0 < p.num_slots <= SQUARES else ""
    line = Text(f"{'packs':<{LABEL}}targets {p.computing_packs} → ready ")
    line.append(full, "cyan").append(f"{p.ready_slots}/{p.num_slots}", "bold")
    line.append(f" → drafters {p.held_packs}")
    over = rings(scene.events)
    over = f"   over {over}" if over else ""
    return line.append(over if line.cell_len + len(over) <= width else "")


def _workers(scene: Scene, most: int, width: int) -> list[Text]:
    workers, p = scene.snapshot.workers, scene.snapshot.progress
    shown = workers if len(workers) <= most else workers[: most - 1]
    name = max((len(worker.name) for worker in shown), default=0)
    name = max(name, len("worker"), LABEL - 2)
    lines = [Text(f"{'worker':<{name}}  {'state':<10} {'packs/s':>8} {'packs':>8} {'waiting':>8}")]
    lines += [_worker(worker, p, scene.rates.get(worker.id or ""), (name, width)) for worker in shown]
    if rest := workers[len(shown) :]:
        states = Counter(state_of(worker, p) for worker in rest)
        lines.append(Text(f"… {len(rest)} more: " + ", ".join(f"{n} {state}" for state, n in states.items())))
    return lines


def _worker(worker: Worker, p: Progress | None, rate: Rate | None, widths: tuple[int, int]) -> Text:
    name, width = widths
    state = state_of(worker, p)
    line = Text(f"{worker.name:<{name}}  ")
    if rate is None and (doing := doing_of(worker, p)) != state:
        return line.append(doing, OTHER_STATE)
    line.append(f"{state:<10}", STATE_STYLE.get(state, OTHER_STATE))
    if rate is None:
        return line.append(f" {'-':>8} {'-':>8} {'-':>8}")
    packs = next((w.status.packs for w in p.workers if w.worker == worker.id and w.status), 0) if p else 0
    line.append(f" {rate.packs_per_s:>8.1f} {packs:>8,} {rate.waiting:>8.0%}  ")
    return line.append("█" * round(rate.waiting * min(20, width - line.cell_len)), "magenta")


def _apart(left: Text, right: Text, width: int) -> Text:
    """Both ends of one line; the left one is cut when they do not fit."""
    left.truncate(max(1, width - right.cell_len - 1), overflow="ellipsis")
    return left.append(" " * max(1, width - left.cell_len - right.cell_len)).append(right)
