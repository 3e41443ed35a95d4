"""Who is in the gradient group. Pure. Each change of membership is a new generation with a number that is never
reused."""

from __future__ import annotations

from dataclasses import dataclass, field

from dfl_mp.messages import Form


@dataclass
class Forming:
    """A generation that is being built: `formed` grows until it equals the members of `order`."""

    order: Form
    formed: set[str] = field(default_factory=set)


class Membership:
    """Members with the number of steps applied by each, and joiners that wait for a step boundary."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.applied: dict[str, int] = {}
        """Of each member."""
        self.joiners: list[str] = []
        self.warm: set[str] = set()
        """Drafters whose step is compiled; only these may join."""
        self.forming: Forming | None = None

    @property
    def members(self) -> set[str]:
        return set(self.applied)

    def level_at(self, step: int) -> bool:
        """Whether every member has applied exactly `step` steps."""
        return all(a == step for a in self.applied.values())

    def ready_joiners(self) -> tuple[str, ...]:
        return tuple(d for d in self.joiners if d in self.warm)

    def begin(self, step: int, load: int | None = None) -> Form:
        """The order for the next generation: joiners receive the state if all members stand at `step`, or load
        `load`."""
        self.generation += 1
        receivers: tuple[str, ...] = ()
        if load is not None or self.level_at(step):
            receivers = self.ready_joiners()
            self.joiners = [d for d in self.joiners if d not in receivers]
        source = max(self.applied, key=lambda d: (self.applied[d], d)) if self.applied else None
        members = tuple(sorted(self.members | set(receivers)))
        order = Form(generation=self.generation, members=members, source=source, receivers=receivers, load=load)
        self.forming = Forming(order)
        return order

    def formed(self, drafter: str, generation: int, applied: int) -> bool:
        """Record Formed; True when the generation stands."""
        if self.forming is None or self.forming.order.generation != generation:
            return False
        self.forming.formed.add(drafter)
        if drafter in self.applied:
            self.applied[drafter] = max(applied, self.applied[drafter])
        return self.forming.formed == set(self.forming.order.members)

    def admit(self, step: int) -> tuple[str, ...]:
        """The generation stands: its receivers become members with `step` steps. Returns all members."""
        assert self.forming is not None
        members = self.forming.order.members
        for drafter in members:
            self.applied.setdefault(drafter, step)
        self.forming = None
        return members

    def remove(self, drafter: str) -> bool:
        """The drafter is dead. True if the group has to be formed anew."""
        if drafter in self.joiners:
            self.joiners.remove(drafter)
        self.warm.discard(drafter)
        concerned = drafter in self.applied or (self.forming is not None and drafter in self.forming.order.members)
        self.applied.pop(drafter, None)
        if concerned:
            self.give_up()
            self.joiners = [d for d in self.joiners if d != drafter]
        return concerned

    def give_up(self) -> None:
        """Whoever was to become a member of the forming generation is a joiner again."""
        if self.forming is not None:
            waiting = [d for d in self.forming.order.members if d not in self.applied]
            self.joiners += [d for d in waiting if d not in self.joiners]
            self.forming = None
