"""The drafter's role with its states laid out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dfl_mp import checkpoint
from dfl_mp.blackbox import BlackBox
from dfl_mp.messages import Applied, Formed, Reduced, Trained
from dfl_mp.protocol.drafter import Drafter
from dfl_mp.roles import drafter as role
from dfl_mp.roles.common import leave
from dfl_mp.roles.intake import Intake
from dfl_mp.train.group import GradientGroup
from dfl_mp.train.step import TrainStep
from tests.chaos import workers
from tests.chaos.mines import Mines

mines = Mines.of_this_process()


def before(owner: Any, method: str, state: str, when: Callable[[Any], bool] = lambda self: True) -> None:
    """The state is passed just before the method runs."""
    real = getattr(owner, method)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if when(self):
            mines.pass_by(state)
        return real(self, *args, **kwargs)

    setattr(owner, method, wrapped)


def _copy(self: Intake, held: Any) -> Any:
    """A copy that is cut in two, then made again as a whole."""
    mines.pass_by("assigned")
    view = self._views.get(held.ref.target)
    if view is not None:
        slot = view.slot(held.ref.slot)
        self._new_buffer(held)[:, ::2].copy_(slot[:, ::2])
        mines.pass_by("mid_copy")
    buffer = _real_copy(self, held)
    mines.pass_by("after_copy")
    return buffer


def _run(self: GradientGroup, collective: Any) -> None:
    """The collective is under way when its state is passed."""

    def begun(group: Any) -> Any:
        work = collective(group)
        mines.pass_by(getattr(self, "in_what", "forming"))
        return work

    _real_run(self, begun)


def _computing(self: BlackBox, pack: int | None) -> None:
    _real_computing(self, pack)
    if pack is not None:
        mines.pass_by("computing")


def during(method: str, state: str) -> None:
    real = getattr(GradientGroup, method)

    def wrapped(self: Any, *args: Any) -> Any:
        self.in_what = state
        try:
            return real(self, *args)
        finally:
            self.in_what = "forming"

    setattr(GradientGroup, method, wrapped)


def _save_file(tensors: Any, path: Any) -> None:
    _real_save(tensors, path)
    if path.name == checkpoint.OPTIMIZER:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        mines.pass_by("torn_save")
        path.write_bytes(whole)


_real_copy, _real_run, _real_save = Intake._copy, GradientGroup._run, checkpoint.save_file
_real_computing = BlackBox.computing
Intake._copy, GradientGroup._run = _copy, _run  # type: ignore[method-assign]
BlackBox.computing = _computing  # type: ignore[method-assign]
checkpoint.save_file = _save_file  # type: ignore[attr-defined]
during("all_reduce", "in_reduce")
during("broadcast", "receiving")
before(role.DrafterRole, "_warm_up", "warming")
before(role.DrafterRole, "_join", "forming")
before(TrainStep, "apply", "commit_heard")
before(Drafter, "all_reduced", "reduced_unsaid")
before(Drafter, "has_applied", "applied_unsaid")
before(Drafter, "saved", "saved_unsaid")
said = {Trained: "trained_said", Reduced: "reduced_said", Applied: "applied_said", Formed: "formed_said"}
workers.lay(mines, said)

if __name__ == "__main__":
    leave(role.main())
