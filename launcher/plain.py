"""A run on anything that is no terminal: a line when something has changed, at most one in `every_s` seconds."""

from __future__ import annotations

import time

from dfl_mp.messages import Progress, Status, name_of, role_of
from launcher.last_screen import Ending
from launcher.snapshot import Snapshot, doing_of, state_of
from launcher.summary import last_lines
from launcher.words import clock, thousands

SAID_LATER = ("data: ", "error: ")
"""Last words of a process that the launcher repeats itself."""


class Plain:
    """A display that only ever adds lines."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next = time.monotonic() + every_s
        self._key: object = None
        self._told: Progress | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Print the snapshot's line if it is time for one and it says something new."""
        now = time.monotonic()
        if now < self._next:
            return
        key, text = line(snapshot, self._told)
        if text and key != self._key:
            self.say(text)
            self._key, self._next = key, now + self._every_s
            self._told = snapshot.progress

    def say(self, text: str) -> None:
        """Print at once."""
        print(text, flush=True)

    def notice(self, text: str) -> None:
        """Print at once what a screen shows among the events."""
        self.say(text)

    def finish(self, ending: Ending) -> None:
        """The block that ends a run."""
        self.say("\n".join(last_lines(ending)))

    def close(self, erase: bool = False) -> None:
        """Nothing is held."""


def line(snapshot: Snapshot, told: Progress | None) -> tuple[object, str]:
    """(what it says, the line) of a snapshot; `told` is the Progress of the line before."""
    p = snapshot.progress
    if snapshot.phase in ("prepare", "evaluate"):
        said = "" if snapshot.message.startswith(SAID_LATER) else snapshot.message
        return said, said
    states = tuple(state_of(worker, p) for worker in snapshot.workers)
    if p is None or p.loss is None:
        return states, starting_line(snapshot)
    down = states.count("down") if p.step < p.num_steps else 0
    return (p.step, down), progress_line(p, told)


def starting_line(snapshot: Snapshot) -> str:
    """`starting, 12 s  target-0 ready · drafter-0 compiling, 9 s`"""
    states = (f"{worker.name} {doing_of(worker, snapshot.progress)}" for worker in snapshot.workers)
    return f"starting, {snapshot.time - snapshot.began:.0f} s  {' · '.join(states)}"


def progress_line(new: Progress, old: Progress | None) -> str:
    """`step 120/1500  loss 3.21  accept_len_est 1.84  18.2K tok/s  data wait 3%  ready 3/4  ETA 1:42  target-0 ..`"""
    parts = [f"step {new.step}/{new.num_steps}"]
    if new.loss is not None:
        parts.append(f"loss {new.loss:.3f}")
    if new.accept_len_est is not None:
        parts.append(f"accept_len_est {new.accept_len_est:.2f}")
    parts.append(f"{thousands(new.tokens_per_s)} tok/s")
    wait = data_wait(new, old)
    if wait is not None:
        parts.append(f"data wait {wait:.0%}")
    parts.append(f"ready {new.ready_slots}/{new.num_slots}")
    if new.eta_s is not None:
        parts.append(f"ETA {clock(new.eta_s)}")
    states = (f"{name_of(w.worker)} {w.status.state if w.status else 'starting'}" for w in new.workers)
    parts.append(" · ".join(states))
    return "  ".join(parts)


def data_wait(new: Progress, old: Progress | None) -> float | None:
    """Share of their time that the drafters waited between two Progress; None when nothing is known."""
    before = _drafters(old) if old else {}
    waited = busy = 0.0
    for worker, status in _drafters(new).items():
        last = before.get(worker)
        waited += status.wait_s - (last.wait_s if last else 0.0)
        busy += status.busy_s - (last.busy_s if last else 0.0)
    return waited / (waited + busy) if waited + busy > 0 else None


def _drafters(progress: Progress) -> dict[str, Status]:
    lines = (line for line in progress.workers if role_of(line.worker) == "drafter")
    return {line.worker: line.status for line in lines if line.status is not None}
