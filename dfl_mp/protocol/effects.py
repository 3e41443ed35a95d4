"""What the coordinator's state machine asks its role to do. The role carries effects out in the order given: what
must be on disk before a message is sent (a generation number, a pack set aside, a ledger line) stands before it in
the list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dfl_mp.messages import Message, Statistics


@dataclass(frozen=True)
class Send:
    """Send `message` to the worker or the launcher."""

    to: str
    message: Message


@dataclass(frozen=True)
class PersistGeneration:
    """Put the number on disk: it is never used again."""

    number: int


@dataclass(frozen=True)
class PersistAside:
    """Put on disk that the pack counts as trained with weight 0."""

    pack: int


@dataclass(frozen=True)
class AppendLedger:
    """Write line `step` of the ledger."""

    step: int
    packs: tuple[int, ...]
    statistics: Statistics
    drafters: int
    generation: int


@dataclass(frozen=True)
class CutLedger:
    """Keep the first `steps` lines and delete the checkpoints beyond."""

    steps: int


@dataclass(frozen=True)
class Publish:
    """Make the checkpoint in the private `folder` visible by one rename."""

    steps: int
    folder: str


@dataclass(frozen=True)
class Note:
    """Write an event."""

    event: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Restart:
    """The view of a link was wrong: exit, to be started again and rebuild the tables from the Hellos."""

    reason: str


Effect = Send | PersistGeneration | PersistAside | AppendLedger | CutLedger | Publish | Note | Restart
