"""The coordinator's role with its states laid out: before and after each effect of its machine."""

from __future__ import annotations

import sys

from dfl_mp.messages import DrafterHello, Message, TargetHello
from dfl_mp.protocol.coordinator import Coordinator
from dfl_mp.protocol.effects import Effect, Send
from dfl_mp.roles import coordinator as role
from tests.chaos.mines import Mines

mines = Mines.of_this_process()
role.SILENT_AFTER_S = 8.0
BEFORE = {"Commit": "commit_unsent", "AppendLedger": "line_unwritten", "Publish": "unpublished"}
AFTER = {
    "Compute": "compute_sent",
    "Train": "train_sent",
    "Reduce": "reduce_half_told",
    "Commit": "commit_half_told",
    "Save": "save_sent",
    "Form": "form_half_told",
    "Admitted": "admitted_half_told",
    "PersistGeneration": "generation_on_disk",
    "AppendLedger": "line_written",
    "Publish": "published",
}


def _carry_out(self: role.CoordinatorRole, effects: list[Effect]) -> None:
    for effect in effects:
        name = type(effect.message if isinstance(effect, Send) else effect).__name__
        if name in BEFORE:
            mines.pass_by(BEFORE[name])
        _real_carry_out(self, [effect])
        if name in AFTER:
            mines.pass_by(AFTER[name])


def _handle(self: Coordinator, sender: str, message: Message) -> list[Effect]:
    if isinstance(message, TargetHello | DrafterHello):
        mines.pass_by("hello_heard")
    return _real_handle(self, sender, message)


_real_carry_out, _real_handle = role.CoordinatorRole._carry_out, Coordinator.handle
role.CoordinatorRole._carry_out = _carry_out  # type: ignore[method-assign]
Coordinator.handle = _handle  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(role.main())
