"""Which faults a run meets, in which order: a function of the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tests.chaos.states import CONT, KILL, NOISE, RESTART, STATES, STUCK, State

DO = {KILL: "SIGKILL", CONT: "SIGSTOP", STUCK: "SIGSTOP", RESTART: "hold", NOISE: ""}
TRIGGERS = ("SIGKILL", "kill", "restart")
RARE = {STUCK: 0.25, CONT: 0.7}
"""Being killed as stuck costs its deadline each time."""


@dataclass(frozen=True)
class Fault:
    """`trigger`: how the worker is ended that has to start for the state to come about. `calm`: all workers are up
    before. `cont_after_s`: when a stopped one goes on; None: it does not."""

    number: int
    state: State
    action: str
    trigger: str
    calm: bool
    pause_s: float
    cont_after_s: float | None

    def mine(self) -> dict[str, object]:
        """What the process that comes into the state is to read."""
        return {"number": self.number, "do": DO[self.action], "victim": self.state.victim, "pause_s": self.pause_s}


def plan(seed: int, count: int, states: tuple[State, ...] = STATES) -> list[Fault]:
    """`count` faults: every state before any comes twice, in an order of the seed."""
    rng = random.Random(seed)
    order: list[State] = []
    while len(order) < count:
        order += rng.sample(states, len(states))
    return [_fault(rng, number, state) for number, state in enumerate(order[:count])]


def chosen(seed: int, *wanted: tuple[str, str]) -> list[Fault]:
    """The faults named by (key of the state, action), each with all workers up."""
    rng, states = random.Random(seed), {state.key: state for state in STATES}
    return [replace(_fault(rng, number, states[key], action), calm=True) for number, (key, action) in enumerate(wanted)]


def _fault(rng: random.Random, number: int, state: State, action: str = "") -> Fault:
    action = action or rng.choices(state.actions, [RARE.get(a, 1.0) for a in state.actions])[0]
    return Fault(
        number=number,
        state=state,
        action=action,
        trigger=rng.choice(TRIGGERS if state.start in ("target", "drafter") else TRIGGERS[:1]),
        calm=rng.random() < 0.4,
        pause_s=rng.choice((0.0, 0.0, 0.02)),
        cont_after_s=rng.choice((0.2, 1.0, 3.0)) if action == CONT else None,
    )
