"""Rebuilding the coordinator's tables from the Hellos of the living. The truth is a live drafter's applied step, then
the checkpoint; the ledger is a log that is cut or completed to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dfl_mp.messages import Commit, DrafterHello, EpochClosed, TargetHello
from dfl_mp.protocol.effects import CutLedger, Send

if TYPE_CHECKING:
    from dfl_mp.protocol.coordinator import Coordinator

LEASE_GAP = 1000
"""Leases of the old coordinator that no Hello mentions stay below the new ones."""


def rebuild(c: Coordinator) -> None:
    """Fill the tables of a fresh machine from `c.hellos`; orders commits that were cut off and a new generation."""
    drafters = {d: h for d, h in c.hellos.items() if isinstance(h, DrafterHello)}
    with_state = {d: h for d, h in drafters.items() if h.applied is not None}
    commits = _membership(c, with_state) if with_state else []
    for drafter in drafters:
        if drafters[drafter].warm:
            c.group.warm.add(drafter)
        if drafter not in c.group.applied:
            c.group.joiners.append(drafter)
    c.packs.restart_at(c.step)
    for drafter in c.group.applied:
        _take_over(c, drafter, drafters[drafter])
    c.lease += LEASE_GAP
    for target, hello in c.hellos.items():
        if isinstance(hello, TargetHello):
            c.join_target(target, hello)
    for drafter, hello in drafters.items():
        for epoch in hello.epochs:
            if epoch not in c.slots.rings:
                c.emit(Send(drafter, EpochClosed(target=epoch)))
    for drafter, step in commits:
        c.emit(Send(drafter, Commit(step=step, packs=c.counted(step))))
    if c.group.applied:
        c.form()


def _membership(c: Coordinator, drafters: dict[str, DrafterHello]) -> list[tuple[str, int]]:
    """Members, step and ledger; returns the commits to repeat as (drafter, step).

    Those at the highest applied step are members; so are those one step behind that hold its reduced buffer. If all
    at the top hold the reduced buffer of the next step in one generation, that step is committed (rule 18).
    """
    top = max(h.applied for h in drafters.values() if h.applied is not None)
    at_top = {d: h for d, h in drafters.items() if h.applied == top}
    behind = {d: h for d, h in drafters.items() if h.applied == top - 1 and h.reduced and h.reduced[0] == top - 1}
    if c.ledger > top:
        c.emit(CutLedger(top))
        c.ledger = top
        c.checkpoints = {k for k in c.checkpoints if k <= top}
    c.group.applied = {d: h.applied or 0 for d, h in (at_top | behind).items()}
    if c.ledger == top - 1:
        newest = next(iter(at_top.values()))
        assert newest.statistics is not None
        c.append(newest.last, newest.statistics)
    assert c.ledger == top, "the ledger cannot be completed to the highest applied step alive"
    c.step = top
    commits = [(d, top - 1) for d in sorted(behind)]
    reduced = [h.reduced for h in at_top.values()]
    if all(r is not None and r[0] == top for r in reduced) and len({r[1] for r in reduced if r}) == 1:
        commits += [(d, top) for d in sorted(at_top)]
        c.step = top + 1
    return commits


def _take_over(c: Coordinator, drafter: str, hello: DrafterHello) -> None:
    for number in hello.trained:
        pack = c.packs.get(number)
        if pack is not None and pack.state == "pending":
            pack.to_held(drafter, 0)
            pack.to_trained()
    for held in hello.held:
        c.lease = max(c.lease, held.lease)
        pack = c.packs.get(held.pack)
        if pack is not None and pack.state == "pending":
            pack.to_held(drafter, held.lease)
            pack.ref, pack.copied = held.ref, held.state == "copied"
