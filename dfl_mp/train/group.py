"""The gradient group: one generation of drafters, with a private process group on a fresh FileStore.

No default process group, no port: a generation is a file in the run folder. Forming and every collective have a
deadline; `supersede` may be called from the control thread while the main thread waits in any of them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

GLOO_TIMEOUT_S = 10.0
"""gloo's abort does nothing: this bounds how long a survivor waits for a peer that is stopped, not dead."""
MEETING_POLL_S = 0.01


class Superseded(Exception):
    """The collective was aborted, or a peer died in it: the next order decides."""


class GradientGroup:
    """Collectives of one drafter. Without peers each is the identity."""

    def __init__(self, run_dir: Path, worker: str, device: torch.device) -> None:
        self._folder = run_dir / ".generations"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._worker, self._device = worker, device
        self._group: dist.ProcessGroup | None = None
        self._sum: Tensor | None = None
        self._newest = 0
        """The highest generation that was ordered."""
        self.generation = 0
        self.members: tuple[str, ...] = ()

    def form(self, generation: int, members: tuple[str, ...], within: float) -> None:
        """Meet the others in the numbered generation.

        Raises Superseded when they do not come within the deadline or a newer generation is ordered meanwhile.
        """
        self.leave()
        self.generation, self.members = generation, members
        if len(members) == 1:
            return
        try:
            store = dist.FileStore(str(self._folder / str(generation)), len(members))
            self._meet(store, within)
            store.set_timeout(timedelta(seconds=within))
            self._group = self._make(store, members.index(self._worker), len(members), within)
            self._check()
        except (RuntimeError, dist.DistError) as error:
            raise Superseded(f"generation {generation}: {_first_line(error)}") from None

    def _meet(self, store: dist.Store, within: float) -> None:
        """Wait until every member has opened the store: from here on only a death can keep the group from forming."""
        store.set(self._worker, "here")
        end = time.monotonic() + within
        while not store.check(list(self.members)):
            if self._newest > self.generation:
                raise Superseded(f"generation {self.generation}: {self._newest} is ordered")
            if time.monotonic() > end:
                missing = [m for m in self.members if not store.check([m])]
                raise Superseded(f"generation {self.generation}: {', '.join(missing)} not within {within:.0f} s")
            time.sleep(MEETING_POLL_S)

    def _make(self, store: dist.Store, rank: int, size: int, within: float) -> dist.ProcessGroup:
        if self._device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timedelta(seconds=within)
            return dist.ProcessGroupNCCL(store, rank, size, options)
        gloo = dist.ProcessGroupGloo._Options()
        gloo._timeout = timedelta(seconds=GLOO_TIMEOUT_S)
        gloo._devices = [dist.ProcessGroupGloo.create_device(interface="lo")]
        return self._unless_superseded(lambda: dist.ProcessGroupGloo(store, rank, size, gloo))

    def _unless_superseded(self, connect: Callable[[], dist.ProcessGroup]) -> dist.ProcessGroup:
        """A peer that dies between the meeting and its connection keeps gloo waiting for up to 50 s, and nothing ends
        that: then it is left to a thread of its own."""
        made: Future[dist.ProcessGroup] = Future()

        def run() -> None:
            try:
                made.set_result(connect())
            except BaseException as error:
                made.set_exception(error)

        threading.Thread(target=run, name="gloo", daemon=True).start()
        while True:
            with contextlib.suppress(TimeoutError):
                return made.result(timeout=MEETING_POLL_S)
            if made.done():
                return made.result()
            if self._newest > self.generation:
                raise Superseded(f"generation {self.generation}: {self._newest} is ordered")

    def _check(self) -> None:
        """One small sum, so that a generation that stands has really talked."""
        probe = torch.full((1,), float(self.generation), device=self._device)
        self._run(lambda g: g.allreduce([probe]))
        assert probe.item() == self.generation * len(self.members), "two memberships met on one FileStore"

    def all_reduce(self, vector: Tensor) -> Tensor:
        """Sum of all members' vectors, out of place: `vector` stays as it is. Without peers it is `vector` itself."""
        if len(self.members) == 1:
            return vector
        if self._sum is None:
            self._sum = torch.empty_like(vector)
        self._sum.copy_(vector)
        self._run(lambda g: g.allreduce([self._sum]))
        return self._sum

    def broadcast(self, tensors: list[Tensor], source: str) -> None:
        """Overwrite the tensors with those of `source`."""
        root = self.members.index(source)
        for tensor in tensors:
            self._run(partial(_broadcast, tensor, root))

    def _run(self, collective: Callable[[dist.ProcessGroup], dist.Work]) -> None:
        if self._group is None:
            if len(self.members) > 1:
                raise Superseded("the group was left")
            return
        try:
            collective(self._group).wait()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except RuntimeError as error:
            raise Superseded(_first_line(error)) from None
        if self._newest > self.generation:
            raise Superseded(f"aborted for generation {self._newest}")  # the host wait of an aborted kernel just ends

    def supersede(self, generation: int) -> None:
        """From the control thread: a newer generation is ordered; what the main thread waits for raises.

        NCCL is aborted; gloo has no abort, its peers' deaths and its timeout end the wait.
        """
        self._newest = max(self._newest, generation)
        group = self._group
        if group is not None and self._device.type == "cuda":
            group.abort()

    def leave(self) -> None:
        """Drop the group without talking to anyone."""
        if self._group is not None and self._device.type == "cuda":
            self._group.abort()
        self._group, self.members = None, ()


def _broadcast(tensor: Tensor, root: int, group: dist.ProcessGroup) -> dist.Work:
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = root, 0
    return group.broadcast([tensor], options)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
