"""The protocol with one rule switched off, so that a test can show that the rule is needed.

A rule is off in a machine (a mixin over the real one), in the world (a name in `Variant.off`), or by a patch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

from dfl_mp import messages as m
from dfl_mp.protocol import effects as e
from dfl_mp.protocol import recovery, scheduler
from dfl_mp.protocol.coordinator import Coordinator
from dfl_mp.protocol.drafter import Drafter
from dfl_mp.protocol.packs import Pack, PackTable
from tests.protocol_world import Variant


class NoLease(Coordinator):
    def _held(self, drafter: str, number: int, lease: int) -> Pack | None:
        pack = self.packs.get(number)
        return pack if pack is not None and pack.state == "held" and pack.holder == drafter else None


class NoLeaseDrafter(Drafter):
    def _on_revoke(self, message: m.Revoke) -> None:
        held = self.held.get(message.pack)
        if held is not None:
            super()._on_revoke(m.Revoke(pack=message.pack, lease=held.lease))
        elif message.pack not in self.trained:
            self.outbox.append(m.Released(pack=message.pack, lease=message.lease))


class ReleaseWhileCopying(Drafter):
    def _on_revoke(self, message: m.Revoke) -> None:
        held = self.held.get(message.pack)
        if held is not None and held.lease == message.lease and held.state == "copying":
            self._release(held)
        else:
            super()._on_revoke(message)


class BalanceAlways(Coordinator):
    def _balance_tail(self) -> None:
        for pack in self.packs:
            pack.balanced = False
        step = self.packs.of_step(self.step) if self.step < self.shape.num_steps else []
        if not step or any(p.state in ("pending", "ready", "leased") for p in step):
            return
        held = {d: [p for p in step if p.state == "held" and p.holder == d] for d in sorted(self.group.members)}
        spare = [p for packs in held.values() for p in packs if not p.revoking]
        if spare and not all(held.values()):
            self._revoke(spare[-1])


class NoRoomInDrafters(Coordinator):
    def _assign(self) -> None:
        with mock.patch.object(self, "_revoke_one", lambda packs: None):
            super()._assign()


class NoRoomInRing(Coordinator):
    def _take_slot_from_later(self) -> tuple[str, int] | None:
        return None


class GiveBackAsPending(Coordinator):
    def _give_back(self, pack: Pack) -> None:
        pack.to_pending()


class AsideInMemory(Coordinator):
    def _set_aside(self) -> None:
        super()._set_aside()
        self._out = [x for x in self._out if not isinstance(x, e.PersistAside)]


class KeepReduced(Drafter):
    def handle(self, message: m.Message) -> None:
        if isinstance(message, m.Form):
            self.form = message
        else:
            super().handle(message)


class CountAtOnce(Drafter):
    def joined(self, order: m.Form, applied: int, replaced: bool) -> None:
        super().joined(order, applied, replaced)
        self.admitted = True


class CommitTwice(Drafter):
    def _on_commit(self, message: m.Commit) -> None:
        if self.commit is None:
            assert self.reduced is not None and self.reduced[0] == message.step, "Commit of a buffer that is not held"
            self.commit = message


class ReformOnlyIfChanged(Coordinator):
    known: dict[int, tuple[str, ...]]
    """Members of each generation; outlives the coordinator, as the workers' memory does."""

    def form(self, load: int | None = None) -> None:
        generations = {h.generation for d, h in self.hellos.items() if d in self.group.applied and isinstance(h, Hello)}
        old = self.known.get(next(iter(generations)), ()) if len(generations) == 1 else ()
        if not self.recovered and set(old) == self.group.members:
            return
        super().form(load)
        assert self.group.forming is not None
        self.known[self.group.generation] = self.group.forming.order.members


Hello = m.DrafterHello


def _keep_all(c: Coordinator, drafters: dict[str, m.DrafterHello]) -> list[tuple[str, int]]:
    commits = _membership(c, drafters)
    for drafter, hello in drafters.items():
        c.group.applied.setdefault(drafter, hello.applied or 0)
    return commits


def _any_holds(c: Coordinator, drafters: dict[str, m.DrafterHello]) -> list[tuple[str, int]]:
    commits = _membership(c, drafters)
    at_top = {d: h for d, h in drafters.items() if h.applied == c.step}
    if any(h.reduced and h.reduced[0] == c.step for h in at_top.values()):
        commits += [(d, c.step) for d in sorted(at_top)]
        c.step += 1
    return commits


class Everyone(set[str]):
    def __contains__(self, name: object) -> bool:
        return True


class AnyHelloCounts(Coordinator):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.listed = Everyone()


class ForgetWhatFollows(Coordinator):
    def handle(self, sender: str, message: m.Message) -> list[e.Effect]:
        self.kept.clear()
        return super().handle(sender, message)


class NoEpochsAfterRestart(Coordinator):
    def emit(self, effect: e.Effect) -> None:
        if not (isinstance(effect, e.Send) and isinstance(effect.message, m.EpochClosed)):
            super().emit(effect)


class ForgetSlots(Coordinator):
    def join_target(self, target: str, hello: m.TargetHello) -> None:
        self.slots.add(target, hello.ring)


class NoRestart(Coordinator):
    def handle(self, sender: str, message: m.Message) -> list[e.Effect]:
        return [x for x in super().handle(sender, message) if not isinstance(x, e.Restart)]


class KeepSlotsAtRewind(Coordinator):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.packs.__class__ = _LeakyTable


class _LeakyTable(PackTable):
    def restart_at(self, step: int) -> list[m.SlotRef]:
        super().restart_at(step)
        return []


class ReduceOnlyWhenApplied(Drafter):
    def _on_reduce(self, message: m.Reduce) -> None:
        if self.commit is None:
            super()._on_reduce(message)


class LoseLateSaves(Coordinator):
    def _on_applied(self, drafter: str, message: m.Applied) -> None:
        saving, self.saving = self.saving, None
        super()._on_applied(drafter, message)
        self.saving = self.saving or saving


class JoinAgain(Drafter):
    def aborted(self) -> None:
        order = self.form
        super().aborted()
        self.form = order


class RememberUnreadable(Drafter):
    def hello(self) -> m.DrafterHello:
        unreadable = set(self.unreadable)
        hello = super().hello()
        self.unreadable = unreadable
        return hello


_membership = recovery._membership

COORDINATORS: dict[str, type[Coordinator]] = {
    "lease": NoLease,
    "balance": BalanceAlways,
    "room": NoRoomInDrafters,
    "ring_room": NoRoomInRing,
    "give_back": GiveBackAsPending,
    "aside": AsideInMemory,
    "reform": ReformOnlyIfChanged,
    "stale": AnyHelloCounts,
    "wait": ForgetWhatFollows,
    "epochs": NoEpochsAfterRestart,
    "slots": ForgetSlots,
    "rehello": NoRestart,
    "rewind": KeepSlotsAtRewind,
    "late_save": LoseLateSaves,
}
DRAFTERS: dict[str, type[Drafter]] = {
    "lease": NoLeaseDrafter,
    "finish": ReleaseWhileCopying,
    "discard": KeepReduced,
    "confirm": CountAtOnce,
    "recommit": CommitTwice,
    "commit_then_reduce": ReduceOnlyWhenApplied,
    "enter_once": JoinAgain,
    "unreadable": RememberUnreadable,
}
WORLD = {"suspect", "generation", "oldlink", "save", "publish", "cut_checkpoints"}
PATCHES: dict[str, tuple[Any, str, Any]] = {
    "credits": (scheduler, "MAX_HELD", 3),
    "all_hold": (recovery, "_membership", _any_holds),
    "demote": (recovery, "_membership", _keep_all),
}
RULES = sorted({*COORDINATORS, *DRAFTERS, *WORLD, *PATCHES})


def variant_without(rules: Iterable[str]) -> Variant:
    """The machines and the world without these rules."""
    unknown = set(rules) - set(RULES)
    if unknown:
        raise ValueError(f"no such rule: {sorted(unknown)}")
    coordinators = [COORDINATORS[r] for r in rules if r in COORDINATORS]
    drafters = [DRAFTERS[r] for r in rules if r in DRAFTERS]
    return Variant(
        coordinator=type("Variant", (*coordinators, Coordinator), {"known": {}}) if coordinators else Coordinator,
        drafter=type("Variant", (*drafters, Drafter), {}) if drafters else Drafter,
        off=frozenset(rules),
    )


@contextlib.contextmanager
def patched(rules: Iterable[str]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for rule in rules:
            if rule in PATCHES:
                stack.enter_context(mock.patch.object(*PATCHES[rule]))
        yield
