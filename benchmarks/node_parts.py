"""Parts of `benchmarks.node` that only let runs run: splits, scaling, starts from nothing, a long run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.busy import tokens_per_s
from benchmarks.end_to_end import FAST
from benchmarks.machine_watch import MachineWatch
from benchmarks.results_file import ResultFile
from benchmarks.runs import PACKS, SKIP, Limits, Place, brief, measured
from benchmarks.watched_run import WatchedRun
from launcher import compose, cost, machine
from launcher.plan import plan

Split = tuple[int, int]
SPLITS: dict[int, tuple[Split, ...]] = {
    0: ((1, 1), (1, 2)),
    1: ((1, 1),),
    2: ((1, 1), (1, 2)),
    4: ((3, 1), (2, 2), (1, 3)),
    8: ((5, 3), (4, 4), (3, 5), (2, 6)),
}
"""By the number of GPUs; (1, 2) on two has a drafter beside the target. 0: on the CPU."""
FLAT_MIB = 128
"""What a GPU's memory may grow in a long run."""


@dataclass
class Bench:
    place: Place
    limits: Limits
    result: ResultFile
    num_gpus: int
    asked: Split | None
    soak_s: float

    @property
    def split(self) -> Split:
        return self.asked or auto_split(self.place)

    def keep(self, part: str, found: Any) -> None:
        """Into the file; a size other than Qwen3-8B's is an ending of the name."""
        self.result.add(part if self.place.size in ("qwen3_8b", "tiny") else f"{part}_{self.place.size}", found)


def auto_split(place: Place) -> Split:
    """What `cluster=auto` takes on this machine."""
    config = compose.load(place.overrides(None, None, "cache"))
    placed = plan(config.cluster, machine.look(), config.train.packs_per_step, cost.of(config))
    return len(placed.targets), len(placed.drafters)


def splits_of(num_gpus: int) -> tuple[Split, ...]:
    """Every split of a number of GPUs that SPLITS does not name."""
    return SPLITS.get(num_gpus) or tuple((num_gpus - d, d) for d in range(1, num_gpus))


# ---- splits -----------------------------------------------------------------------------------------------------


def splits(bench: Bench) -> None:
    auto = auto_split(bench.place)
    found: dict[Split, dict[str, Any]] = {}
    for split in dict.fromkeys([*splits_of(bench.num_gpus), auto]):
        found[split] = said(measured(bench.place, bench.place.overrides(*split, "cache"), bench.limits))
        print(name_of(split), brief(found[split]), flush=True)
        bench.keep("splits", {name_of(s): f for s, f in found.items()})
    bench.keep("auto", name_of(auto))
    if ratio := against_best(found, auto):
        bench.keep("auto_vs_best", ratio)


def said(found: dict[str, Any]) -> dict[str, Any]:
    """With what the rate means, and who limits it.

    >>> said({"tokens_per_s": 100_000.0, "target_busy": 0.99, "drafter_busy": 0.6})["limited_by"]
    'targets'
    """
    rate = found.get("tokens_per_s")
    if not rate:
        return found
    target, drafter = found.get("target_busy") or 0.0, found.get("drafter_busy") or 0.0
    limit = "targets" if target > drafter else "drafters"
    return found | {"hours_per_100m_tokens": round(1e8 / rate / 3600, 3), "limited_by": limit}


def against_best(found: dict[Split, dict[str, Any]], auto: Split) -> float | None:
    """Tokens/s of the automatic split over those of the best."""
    rates = {split: f["tokens_per_s"] for split, f in found.items() if f.get("tokens_per_s")}
    return round(rates[auto] / max(rates.values()), 4) if auto in rates else None


def name_of(split: Split) -> str:
    return f"{split[0]}+{split[1]}"


# ---- scaling ----------------------------------------------------------------------------------------------------


def scaling(bench: Bench) -> None:
    most = bench.num_gpus or 2
    found: dict[int, dict[str, Any]] = {}
    for drafters in (n for n in (1, 2, 3, 4, 6, 8) if n <= min(most, PACKS[bench.place.size])):
        overrides = bench.place.overrides(1, drafters, "cache", FAST, "cluster.slots_per_target=16")
        found[drafters] = measured(bench.place, overrides, bench.limits, replay=True)
        print(f"{drafters} drafters", brief(found[drafters]), flush=True)
        bench.keep("scaling", found)
    for drafters, share in linear(found).items():
        bench.keep(f"drafter_scaling_{drafters}", share)


def linear(found: dict[int, dict[str, Any]]) -> dict[int, float]:
    """Drafters -> their rate as a share of so many times one drafter's.

    >>> linear({1: {"tokens_per_s": 100.0}, 3: {"tokens_per_s": 285.0}, 4: {"error": "no"}})
    {3: 0.95}
    """
    one = found.get(1, {}).get("tokens_per_s")
    rates = {n: f["tokens_per_s"] for n, f in found.items() if n > 1 and f.get("tokens_per_s")}
    return {n: round(rate / (n * one), 4) for n, rate in rates.items()} if one else {}


# ---- starts from nothing ------------------------------------------------------------------------------------------


def cold(bench: Bench) -> None:
    """Until the first step only, each number of drafters with a cache of its own."""
    limits = Limits(bench.limits.start_s, 1, bench.limits.seconds)
    most = bench.num_gpus or 2
    found: dict[int, dict[str, Any]] = {}
    for drafters in (n for n in (1, 2, 3, 6) if n <= most and (n != 2 or most < 4)):
        overrides = bench.place.overrides(max(1, most - drafters), drafters, f"cache-cold-{drafters}")
        found[drafters] = measured(bench.place, overrides, limits)
        print(f"cold, {drafters} drafters", brief(found[drafters]), flush=True)
        bench.keep("cold", found)
    first, last = min(found), max(found)
    if found[first].get("first_step_s") and found[last].get("first_step_s"):
        bench.keep("cold_last_over_first", round(found[last]["first_step_s"] / found[first]["first_step_s"], 3))


# ---- a long run -------------------------------------------------------------------------------------------------


def soak(bench: Bench) -> None:
    limits = Limits(bench.limits.start_s, 1 << 30, bench.soak_s)
    steps = f"train.max_steps={max(400, round(4 * bench.soak_s))}"
    overrides = bench.place.overrides(*bench.split, "cache", steps)
    found = measured(bench.place, overrides, limits, then=lambda run, watch: {"soak": lasted(run, watch)})
    print("soak", brief(found), found.get("soak"), flush=True)
    bench.keep("soak", {"split": name_of(bench.split), "seconds": bench.soak_s} | found)


def lasted(run: WatchedRun, watch: MachineWatch) -> dict[str, Any]:
    """The last quarter of the time against the second: memory, rate, slots in use; and the ledger."""
    lines = run.lines()[SKIP:]
    quarter = max(1, len(lines) // 4)
    times = [t for t, *_ in run.seen.slots]
    begin, end = (times[0], times[-1]) if times else (0.0, 0.0)
    second, last = (begin + (end - begin) / 4, begin + (end - begin) / 2), (begin + (end - begin) * 3 / 4, end)
    grown = grown_mib(watch.gpu, second, last)
    slots = [max((n for t, n, _ in run.seen.slots if a <= t <= b), default=0) for a, b in (second, last)]
    packs = [n for line in run.lines() for n in line["packs"]]
    return {
        "gpu_grown_mib": grown,
        "memory_flat": all(mib <= FLAT_MIB for mib in grown.values()),
        "host_grown_mib": round(
            grown_mib([(t, "host", 0.0, m) for t, m, *_ in watch.host], second, last).get("host", 0.0)
        ),
        "tokens_per_s_second_and_last_quarter": [
            round(tokens_per_s(part), 1) for part in (lines[quarter : 2 * quarter], lines[-quarter:])
        ],
        "most_slots_in_use": slots,
        "every_pack_once": packs == list(range(len(packs))),
        "restarts": len(run.events("worker_restarted")),
        "recompiles": len(run.events("recompile")),
    }


def grown_mib(
    samples: list[tuple[float, str, float, float]], before: tuple[float, float], after: tuple[float, float]
) -> dict[str, float]:
    """Name -> the peak within the later stretch of time less that within the earlier one.

    >>> grown_mib([(1.0, "0", 0.0, 500.0), (2.0, "0", 0.0, 520.0)], (0.0, 1.0), (1.5, 2.0))
    {'0': 20.0}
    """
    peaks: dict[str, list[float]] = {name: [0.0, 0.0] for name in sorted({name for _, name, *_ in samples})}
    for t, name, _, mib in samples:
        for i, (a, b) in enumerate((before, after)):
            if a <= t <= b:
                peaks[name][i] = max(peaks[name][i], mib)
    return {name: late - early for name, (early, late) in peaks.items()}
