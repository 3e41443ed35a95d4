"""What a person sees of a run: one plain line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable

from dfl_mp.messages import Progress, Status, name_of, role_of
from launcher.child import Child


class Console:
    """Collects what is known and prints at most one line in `every_s` seconds; `say` prints at once."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._began = time.monotonic()
        self._next = self._began + every_s
        self._newest: Progress | None = None
        self._printed: Progress | None = None

    @property
    def saving(self) -> bool:
        """Whether a worker says that it is writing a checkpoint."""
        workers = self._newest.workers if self._newest else ()
        return any(line.status is not None and line.status.state == "saving" for line in workers)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def progress(self, progress: Progress) -> None:
        """Take in what the coordinator says."""
        self._newest = progress

    def waiting(self, child: Child) -> None:
        """A phase of one process: how long it runs and what it said last."""
        if self._is_time():
            self.say(f"{child.name}, {child.age:.0f} s  {(child.log_lines() or [''])[-1]}".rstrip())

    def tick(self, workers: Iterable[Child]) -> None:
        """Print a line when it is time to."""
        if not self._is_time():
            return
        if self._newest is None or self._newest.loss is None:
            self.say(starting_line(self._newest, workers, time.monotonic() - self._began))
        elif self._newest is not self._printed:
            self.say(progress_line(self._newest, self._printed))
            self._printed = self._newest

    def _is_time(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._every_s
        return True


def starting_line(progress: Progress | None, workers: Iterable[Child], seconds: float) -> str:
    """`starting, 12 s  target-0 ready · drafter-0 compiling`"""
    said = {line.worker: line.status for line in progress.workers} if progress else {}
    states = []
    for child in workers:
        status = said.get(child.id)
        states.append(f"{child.name} {status.state if status else 'ready' if child.ready else 'starting'}")
    return f"starting, {seconds:.0f} s  {' · '.join(states)}"


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
