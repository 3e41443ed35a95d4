"""The coordinator's side of an operator's commands, and a run whose drafters are all gone: the real machine, no
socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from dfl_mp import messages as m
from dfl_mp.protocol import effects as e
from dfl_mp.protocol.coordinator import Coordinator
from dfl_mp.protocol.scheduler import OnDisk
from dfl_mp.roles.operators import SAVE_WITHIN_S, Operators
from tests.unit.test_protocol_coordinator import A, B, T, drafter, recovered, sent, target

OPERATOR = "ctl-7"


class Desk:
    """A counter over a machine; `said` is what it has sent."""

    def __init__(self, machine: Coordinator, launcher: bool = True) -> None:
        self.machine, self.launcher = machine, launcher
        self.said: list[tuple[str, m.Message]] = []
        self.operators = Operators(Path("/run"), machine, self._send)

    def _send(self, to: str, message: m.Message) -> bool:
        self.said.append((to, message))
        return to != m.LAUNCHER or self.launcher

    def take(self, what: str, worker: str = "") -> list[e.Effect]:
        return self.operators.take(m.Command(what=what, worker=worker, operator=OPERATOR), now=0.0)  # type: ignore[arg-type]

    def answers(self) -> list[tuple[int | None, str]]:
        return [(a.code, a.text) for to, a in self.said if to == OPERATOR and isinstance(a, m.Answer)]

    def orders(self) -> list[str]:
        return [c.what for to, c in self.said if to == m.LAUNCHER and isinstance(c, m.Command)]


def running(**hellos: m.DrafterHello | m.TargetHello) -> Coordinator:
    """Two steps are committed, none is saved."""
    machine, out = recovered(OnDisk(ledger=2), **hellos)
    for _, form in sent(out, m.Form)[:1]:
        assert isinstance(form, m.Form)
        for member in form.members:
            machine.handle(member, m.Formed(generation=form.generation, applied=2))
    return machine


def test_checkpoint_is_answered_when_it_is_published() -> None:
    desk = Desk(running(T=target(), A=drafter(2)))
    assert sent(desk.take("checkpoint"), m.Save) == [(A, m.Save(steps=2))]
    assert desk.answers() == [(None, "saving step 2 ...")]
    assert e.Publish(2, "x") in desk.machine.handle(A, m.Saved(steps=2, folder="x"))
    desk.operators.published(2)
    assert desk.answers()[1:] == [(0, "step 2 is saved in /run/checkpoints/step_00000002")]
    assert desk.take("checkpoint") == [] and desk.answers()[2:] == desk.answers()[1:2], "nothing new to save"


def test_checkpoint_without_anything_to_save() -> None:
    fresh = Desk(recovered(OnDisk(), T=target(), A=drafter(None))[0])
    fresh.take("checkpoint")
    assert fresh.answers() == [(1, "no step is committed yet: there is nothing to save")]
    alone = Desk(running(T=target(), A=drafter(2)))
    alone.machine.handle(m.LAUNCHER, m.Died(worker=A, suspect=None))
    alone.take("checkpoint")
    assert alone.answers()[0][0] == 1 and "no drafter has a state" in alone.answers()[0][1]


def test_a_save_whose_drafter_died_is_ordered_of_another_and_late_ones_are_given_up() -> None:
    desk = Desk(running(T=target(), A=drafter(2), B=drafter(2)))
    desk.take("checkpoint")
    desk.machine.handle(m.LAUNCHER, m.Died(worker=A, suspect=None))
    assert sent(desk.operators.watch(now=1.0), m.Save) == [(B, m.Save(steps=2))]
    assert desk.operators.watch(now=SAVE_WITHIN_S - 1) == [] and len(desk.answers()) == 1
    desk.operators.watch(now=SAVE_WITHIN_S)
    assert desk.answers()[1][0] == 1


@pytest.mark.parametrize("what", ["remove", "restart"])
@pytest.mark.parametrize("worker", ["drafter-0", A])
def test_the_last_drafter_is_saved_before_it_goes(what: str, worker: str) -> None:
    desk = Desk(running(T=target(), A=drafter(2)))
    assert sent(desk.take(what, worker), m.Save) and desk.orders() == []
    desk.machine.handle(A, m.Saved(steps=2, folder="x"))
    desk.operators.published(2)
    assert desk.orders() == [what]


def test_others_go_to_the_launcher_at_once() -> None:
    desk = Desk(running(T=target(), A=drafter(2), B=drafter(2)))
    for what, worker in (("remove", "drafter-0"), ("kill", "drafter-0"), ("restart", "target-0"), ("add-drafter", "")):
        assert desk.take(what, worker) == []
    assert desk.orders() == ["remove", "kill", "restart", "add-drafter"] and desk.answers() == []
    alone = Desk(running(T=target(), A=drafter(2)))
    assert alone.take("kill", "drafter-0") == [] and alone.orders() == ["kill"], "a kill is a kill"
    unheard = Desk(running(T=target(), A=drafter(2)), launcher=False)
    unheard.take("kill", "target-0")
    assert unheard.answers() == [(1, "the launcher is not connected; try again")]


def test_a_run_without_drafters_waits_and_goes_on_from_its_checkpoint() -> None:
    machine = running(T=target(), A=drafter(2))
    machine.save_now()
    machine.handle(A, m.Saved(steps=2, folder="x"))
    out = machine.handle(m.LAUNCHER, m.Died(worker=A, suspect=None))
    assert not sent(out, m.Form) and not machine.finished
    assert machine.handle(T, m.FeaturesReady(pack=4, slot=0, seq=5)) == []
    again = "drafter-0.2"
    assert not sent(machine.handle(m.LAUNCHER, m.Started(worker=again)), m.Form)
    cold = drafter(None).model_copy(update={"warm": False})
    assert not sent(machine.handle(again, cold), m.Form), "it is not warm"
    out = machine.handle(again, m.Warm())
    [(to, form)] = sent(out, m.Form)
    assert isinstance(form, m.Form) and to == again and form.load == 2, "never from step 0"


def test_a_coordinator_that_starts_without_any_worker_waits() -> None:
    machine = Coordinator(running(T=target(), A=drafter(2)).shape, OnDisk(ledger=2, checkpoints={1}))
    assert machine.handle(m.LAUNCHER, m.Alive(workers=())) == [] and machine.recovered
    machine.handle(m.LAUNCHER, m.Started(worker=A))
    [(_, form)] = sent(machine.handle(A, drafter(None)), m.Form)
    assert isinstance(form, m.Form) and form.load == 1


def test_who_is_past() -> None:
    machine = running(T=target(), A=drafter(2), B=drafter(2))
    machine.handle(m.LAUNCHER, m.Died(worker=B, suspect=None))
    assert machine.is_past(B) and not machine.is_past(A) and not machine.is_past("drafter-1.2")
    machine.handle(m.LAUNCHER, m.Started(worker="drafter-0.12"))
    assert machine.is_past(A) and not machine.is_past("drafter-0.12") and not machine.is_past(m.LAUNCHER)
    assert not machine.is_past("drafter-00.1"), "another name"
