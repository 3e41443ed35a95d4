"""Events of a run in words: those that matter to people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from dfl_mp.messages import name_of
from launcher.words import plural

Event = dict[str, Any]
QUIET = frozenset({"worker_started", "worker_ready", "worker_stuck", "transport_proved"})
"""Every run has them, or another event says it."""
BAD, GOOD, PLAIN = "red", "green", ""


def _exited(event: Event) -> tuple[str, str] | None:
    log = f"logs/{event['worker']}.{event['incarnation']}.log"
    if event.get("stuck"):
        return f"{event['worker']} killed as stuck: {event['stuck']}; see {log}", BAD
    if event.get("signal"):
        return f"{event['worker']} killed by {event['signal']}", PLAIN if event["signal"] == "SIGTERM" else BAD
    return (f"{event['worker']} ended with exit code {event['code']}; see {log}", BAD) if event.get("code") else None


def _generation(event: Event) -> tuple[str, str]:
    members = ", ".join(name_of(member) for member in event["members"])
    return f"generation {event['generation']}: {members}, from step {event['step']}", PLAIN


def _recompiled(event: Event) -> tuple[str, str]:
    why = f": {event['reason']}" if event.get("reason") else ""
    return f"{name_of(event['drafter'])} compiled {plural(event['graphs'], 'graph')} again{why}", BAD


def _slower(event: Event) -> tuple[str, str]:
    ratio = event["before_s"] / event["now_s"]
    return f"the rate fell to {ratio:.0%}, {event['now_s']:.2f} s a step: {event['cause']}", BAD


def _stopped(event: Event) -> tuple[str, str]:
    return f"run {event['reason']}", GOOD if event["reason"] == "done" else BAD


WORDS: dict[str, Callable[[Event], tuple[str, str] | None]] = {
    "run_started": lambda e: ("run resumed" if e.get("resumed") else "run started", PLAIN),
    "run_stopped": _stopped,
    "worker_exited": _exited,
    "worker_restarted": lambda e: (f"{e['worker']} started again, process {e['pid']}", GOOD),
    "generation": _generation,
    "checkpoint_saved": lambda e: (f"checkpoint of step {e['steps']} saved", GOOD),
    "step_skipped": lambda e: (f"step {e['step']} skipped: its loss or gradient is not finite", BAD),
    "pack_set_aside": lambda e: (f"pack {e['pack']} set aside: it ended its worker twice", BAD),
    "rewound": lambda e: (f"went back from step {e['from']} to {e['to']}", BAD),
    "coordinator_restart": lambda e: (f"coordinator starts again: {e['reason']}", BAD),
    "transport_fallback": lambda e: (f"{e['target']} goes over shared memory: {e['reason']}", BAD),
    "recompile": _recompiled,
    "rate_dropped": _slower,
    "order_late": lambda e: (f"late: {e['order']}", BAD),
}


def in_words(event: Event) -> tuple[str, str] | None:
    """(text, style) of an event; None when it is not for people. Events unknown here are spelled out.

    >>> in_words({"time": 0.0, "event": "checkpoint_saved", "worker": "coordinator", "steps": 40, "folder": "/x"})
    ('checkpoint of step 40 saved', 'green')
    """
    kind = event["event"]
    if kind in QUIET:
        return None
    if kind in WORDS:
        return WORDS[kind](event)
    rest = {key: value for key, value in event.items() if key not in ("time", "event", "pid", "incarnation")}
    return f"{kind.replace('_', ' ')}  {'  '.join(f'{key} {value}' for key, value in rest.items())}", PLAIN


def last(events: Iterable[Event], most: int) -> list[tuple[str, str, str]]:
    """(time of day, text, style) of the newest events that matter, oldest first."""
    told = [(event["time"], found) for event in events if (found := in_words(event)) is not None]
    newest = told[-most:] if most > 0 else []
    return [(time.strftime("%H:%M:%S", time.localtime(at)), text, style) for at, (text, style) in newest]


def rings(events: Iterable[Event]) -> str:
    """How features travel, as drafters have proved it: `shm`, `cuda`, `cuda and shm`, or nothing."""
    return " and ".join(sorted({event["kind"] for event in events if event["event"] == "transport_proved"}))
