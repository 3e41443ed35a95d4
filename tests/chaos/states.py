"""The states of the protocol at which a worker is hit, by kind of worker, and what each may be hit with."""

from __future__ import annotations

from dataclasses import dataclass

KILL, CONT, STUCK, RESTART = "SIGKILL", "SIGSTOP, SIGCONT later", "SIGSTOP, killed as stuck", "restart"
NOISE = "noise"
ALL = (KILL, CONT, STUCK, RESTART)
NO_BLAME = (KILL, CONT, RESTART)
"""A worker that is killed as stuck while it computes is blamed on its pack, which two such deaths set aside."""
COORDINATOR = (KILL, CONT, STUCK)
"""An operator has no word for the coordinator."""


@dataclass(frozen=True)
class State:
    """`group` names the state as the protocol's documents do. `victim`: who is hit when somebody is in this state.
    `start`: which worker has to be ended first, so that somebody comes into it."""

    role: str
    name: str
    group: str
    actions: tuple[str, ...] = ALL
    victim: str = ""
    start: str = ""

    @property
    def key(self) -> str:
        again = " to the next coordinator" if self.start == "coordinator" != self.role else ""
        return f"{self.role}.{self.name}" + (f".{self.victim}" if self.victim else "") + again


BEFORE, LEASE, COPY, COPIED = "before hello", "holding a lease", "mid-copy", "after copy"
REDUCE, REDUCED, COMMITTED = "in the reduce", "between Reduced and Commit", "after Commit before Applied"
JOINING, SAVING, OTHER = "while joining", "while saving", "in the gradient"
STATES = (
    State("drafter", "before_hello", BEFORE, start="drafter"),
    State("drafter", "before_hello", BEFORE, start="coordinator"),
    State("target", "before_hello", BEFORE, start="coordinator"),
    State("target", "before_hello", BEFORE, start="target"),
    State("coordinator", "hello_heard", BEFORE, COORDINATOR, start="coordinator"),
    State("target", "leased", LEASE),
    State("target", "mid_forward", LEASE, NO_BLAME),
    State("target", "features_said", LEASE),
    State("drafter", "assigned", LEASE),
    State("coordinator", "compute_sent", LEASE, COORDINATOR),
    State("drafter", "mid_copy", COPY),
    State("drafter", "mid_copy", COPY, (KILL, CONT), victim="target"),
    State("drafter", "after_copy", COPIED),
    State("drafter", "computing", COPIED, NO_BLAME),
    State("coordinator", "train_sent", COPIED, COORDINATOR),
    State("drafter", "trained_said", OTHER),
    State("drafter", "in_reduce", REDUCE),
    State("drafter", "in_reduce", REDUCE, (KILL, CONT), victim="coordinator"),
    State("coordinator", "reduce_half_told", REDUCE, COORDINATOR),
    State("drafter", "reduced_unsaid", REDUCED),
    State("drafter", "reduced_said", REDUCED),
    State("coordinator", "commit_unsent", REDUCED, COORDINATOR),
    State("coordinator", "commit_half_told", COMMITTED, COORDINATOR),
    State("drafter", "commit_heard", COMMITTED),
    State("drafter", "commit_heard", COMMITTED, (KILL, CONT), victim="coordinator"),
    State("drafter", "applied_unsaid", COMMITTED),
    State("drafter", "applied_said", COMMITTED),
    State("coordinator", "line_unwritten", COMMITTED, COORDINATOR),
    State("coordinator", "line_written", COMMITTED, COORDINATOR),
    State("drafter", "warming", JOINING, start="drafter"),
    State("drafter", "forming", JOINING, start="drafter"),
    State("drafter", "receiving", JOINING, start="drafter"),
    State("drafter", "formed_said", JOINING, start="drafter"),
    State("coordinator", "generation_on_disk", JOINING, COORDINATOR, start="drafter"),
    State("coordinator", "form_half_told", JOINING, COORDINATOR, start="drafter"),
    State("coordinator", "admitted_half_told", JOINING, COORDINATOR, start="drafter"),
    State("drafter", "torn_save", SAVING),
    State("drafter", "saved_unsaid", SAVING),
    State("coordinator", "save_sent", SAVING, COORDINATOR),
    State("coordinator", "unpublished", SAVING, COORDINATOR),
    State("coordinator", "published", SAVING, COORDINATOR),
    State("launcher", "anywhere", "launcher", (KILL,)),
    State("hostile", "anywhere", "hostile peer", (NOISE,)),
)
