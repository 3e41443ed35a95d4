"""Which workers run where: a pure function of the config and the machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dfl_mp.compiling import compile_threads
from dfl_mp.config import ClusterConfig
from dfl_mp.errors import ConfigError
from launcher.cost import DEFAULT, PackCost
from launcher.machine import Gpu, Machine

WORKERS_PER_CORE = 4
LOW_SHARE = 0.95


@dataclass(frozen=True)
class Placement:
    """One worker: `drafter-1`, and its GPU (None: CPU)."""

    name: str
    gpu: Gpu | None


@dataclass(frozen=True)
class Plan:
    targets: tuple[Placement, ...]
    drafters: tuple[Placement, ...]
    threads: int
    """CPU threads of each worker."""
    compile_threads: int
    """Compile helpers of each worker on a GPU: one drafter and one target compile at a time, the others follow."""
    notes: tuple[str, ...]
    """For people."""

    @property
    def workers(self) -> tuple[Placement, ...]:
        return (*self.targets, *self.drafters)


def plan(cluster: ClusterConfig, machine: Machine, packs_per_step: int, cost: PackCost = DEFAULT) -> Plan:
    """Place the workers; how the GPUs are split when nothing is said follows from the cost of a pack.

    Raises ConfigError naming `cluster.targets` or `cluster.drafters` when they do not fit.
    """
    if cluster.drafters is not None and cluster.drafters > packs_per_step:
        packs = f"train.packs_per_step={packs_per_step}"
        raise ConfigError(f"cluster.drafters: {cluster.drafters} drafters for {packs}: some would never work")
    skipped = tuple(f"GPU {gpu.name} is skipped: {gpu.busy_by}" for gpu in machine.gpus if gpu.busy_by)
    if machine.gpus and not machine.free_gpus:
        raise ConfigError(f"cluster.targets: no free GPU ({'; '.join(skipped)})")
    if machine.free_gpus:
        targets, drafters = _on_gpus(cluster, machine.free_gpus, (packs_per_step, cost))
        threads = max(1, min(8, machine.num_cores // (len(targets) + len(drafters))))
    else:
        targets, drafters = _on_cpu(cluster, machine.num_cores, packs_per_step)
        threads = cluster.threads_per_worker
    notes = (*skipped, *_share_notes(packs_per_step, len(drafters)))
    return Plan(targets, drafters, threads, compile_threads(machine.num_cores, leaders=2), notes)


def one_more_drafter(
    places: Mapping[str, Placement], removed: Collection[str], machine: Machine, packs_per_step: int
) -> Placement:
    """Where one more drafter goes while a run is under way: the place of one that was removed, else the next index.

    Raises ConfigError with the reason when it does not fit.
    """
    living = {name: place for name, place in places.items() if name not in removed}
    drafters = [name for name in living if name.startswith("drafter-")]
    if len(drafters) >= packs_per_step:
        raise ConfigError(f"train.packs_per_step={packs_per_step}: with {len(drafters) + 1} drafters some never work")
    freed = sorted(name for name in places if name in removed and name.startswith("drafter-"))
    if freed:
        return places[freed[0]]
    name = next(f"drafter-{i}" for i in range(len(places) + 1) if f"drafter-{i}" not in places)
    if all(place.gpu is None for place in places.values()):
        most = WORKERS_PER_CORE * machine.num_cores
        if len(living) >= most:
            raise ConfigError(f"{machine.num_cores} cores take {most} workers, and so many there are")
        return Placement(name, None)
    owners = {place.gpu.name: owner for owner, place in living.items() if place.gpu}
    for gpu in machine.free_gpus:
        if gpu.name not in owners:
            return Placement(name, gpu)
    used = (f"GPU {gpu.name}: {owners.get(gpu.name) or gpu.busy_by}" for gpu in machine.gpus)
    raise ConfigError(f"no GPU is free ({'; '.join(used)})")


def work_share(packs_per_step: int, num_drafters: int) -> float:
    """Share of a step that drafters work, `G / (D·⌈G/D⌉)`: 24 packs on 5 drafters take 5 rounds of 5, so 0.96."""
    rounds = -(-packs_per_step // num_drafters)
    return packs_per_step / (num_drafters * rounds)


def split_gpus(num_gpus: int, packs_per_step: int = 24, cost: PackCost = DEFAULT) -> tuple[int, int]:
    """(targets, drafters), no more drafters than packs, for the shortest step; a single GPU is shared.

    Of splits that are equally fast the one with the fewest drafters is taken: a target more is slack.

    >>> split_gpus(8, 24, PackCost(target_s=1.0, drafter_s=3.0, update_s=0.0, reduce_s=0.0))
    (2, 6)
    """
    if num_gpus == 1:
        return 1, 1
    splits = ((num_gpus - drafters, drafters) for drafters in range(1, min(num_gpus, packs_per_step + 1)))
    return min(splits, key=lambda split: (cost.step_s(split[0], split[1], packs_per_step), split[1]))


def _share_notes(packs_per_step: int, num_drafters: int) -> tuple[str, ...]:
    share = work_share(packs_per_step, num_drafters)
    if share >= LOW_SHARE:
        return ()
    return (
        f"warning: {num_drafters} drafters work {share:.0%} of a step of {packs_per_step} packs; "
        f"a multiple of {num_drafters} in train.packs_per_step would use them fully",
    )


def _on_cpu(
    cluster: ClusterConfig, cores: int, packs_per_step: int
) -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
    num_targets = cluster.targets or 1
    num_drafters = cluster.drafters or min(2 if cores > 1 else 1, packs_per_step)
    most = WORKERS_PER_CORE * cores
    if num_targets + num_drafters > most:
        field = "cluster.targets" if num_targets > num_drafters else "cluster.drafters"
        raise ConfigError(
            f"{field}: {num_targets} targets and {num_drafters} drafters; {cores} cores take {most} workers"
        )
    return _named("target", [None] * num_targets), _named("drafter", [None] * num_drafters)


def _on_gpus(
    cluster: ClusterConfig, gpus: tuple[Gpu, ...], step: tuple[int, PackCost]
) -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
    """Distinct GPUs while there are any; then a target shares with a drafter. Two drafters never share."""
    num_targets, num_drafters = _counts(cluster, len(gpus), *step)
    for field, count in (("cluster.drafters", num_drafters), ("cluster.targets", num_targets)):
        if count > len(gpus):
            raise ConfigError(f"{field}: {count} need a GPU each; {len(gpus)} free")
    drafters_at = gpus[len(gpus) - num_drafters :]
    targets_at = (*gpus[: len(gpus) - num_drafters], *drafters_at)[:num_targets]
    return _named("target", targets_at), _named("drafter", drafters_at)


def _counts(cluster: ClusterConfig, num_gpus: int, packs_per_step: int, cost: PackCost) -> tuple[int, int]:
    targets, drafters = cluster.targets, cluster.drafters
    if targets is None and drafters is None:
        targets, drafters = split_gpus(num_gpus, packs_per_step, cost)
    elif drafters is None:
        assert targets is not None
        drafters = max(1, min(num_gpus - targets, packs_per_step))
    elif targets is None:
        targets = max(1, num_gpus - drafters)
    return targets, drafters


def _named(role: str, gpus: tuple[Gpu, ...] | list[None]) -> tuple[Placement, ...]:
    return tuple(Placement(f"{role}-{i}", gpu) for i, gpu in enumerate(gpus))
