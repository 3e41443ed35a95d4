"""Whole runs of `make train` with random weights: who waits for whom, how soon the first step comes, what two drafters
bring.

    python -m benchmarks.end_to_end                                    # Qwen3-8B shapes, 1 target + 1 drafter
    python -m benchmarks.end_to_end --size 27b --parts slow_target
    CUDA_VISIBLE_DEVICES= python -m benchmarks.end_to_end --size tiny --steps 4

Parts: `start` is the whole target with an empty cache of compiled code and with a full one (`cold_first_step_s`,
`warm_first_step_s`); `slow_target` the same with anchors so few that the drafter is the faster one (`target_busy`);
`fast_target` keeps five layers of it (`drafter_busy`); `replay` needs no target: one drafter, then two, each with an
empty cache (`two_drafters_speedup`, and as `second_drafter_adds` what the second costs at the start). A part that fails
leaves its error in the file. `drafter_busy` counts the device's own time in packs and optimizer steps, as a share of
the committed steps' seconds. Figures of a size other than Qwen3-8B get its name as an ending.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks.results_file import ResultFile
from benchmarks.runs import PACKS, ROW, Limits, Place, brief, measured

FAST = "target.layer_ids=[0,1,2,3,4]"
"""Features of the first layers: the layers above them are never loaded."""


class Bench:
    """Each part is a method; what it finds is in the file at once."""

    def __init__(self, place: Place, limits: Limits, result: ResultFile) -> None:
        self.place, self.limits, self.result = place, limits, result

    def start(self) -> None:
        """Until the first step only."""
        limits = Limits(self.limits.start_s, 1, self.limits.seconds)
        for how in ("cold", "warm"):
            found = self.keep(f"start_{how}", measured(self.place, self.place.overrides(1, 1, "cache"), limits))
            self.headline(f"{how}_first_step_s", found, "first_step_s")

    def slow_target(self) -> None:
        anchors = ROW[self.place.size][1] // 4
        overrides = self.place.overrides(1, 1, "cache", f"data.anchors_per_row={anchors}")
        found = {"anchors_per_row": anchors} | measured(self.place, overrides, self.limits)
        self.headline("target_busy", self.keep("slow_target", found), "target_busy")

    def fast_target(self) -> None:
        overrides = self.place.overrides(1, 1, "cache", FAST)
        found = self.keep("fast_target", measured(self.place, overrides, self.limits))
        self.headline("drafter_busy", found, "drafter_busy")

    def replay(self) -> None:
        found: dict[int, dict[str, Any]] = {}
        for drafters in (1, 2):
            overrides = self.place.overrides(1, drafters, f"cache-replay-{drafters}", FAST)
            run = measured(self.place, overrides, self.limits, replay=True)
            found[drafters] = self.keep(f"replay_{drafters}", run)
        one, two = found[1], found[2]
        if "tokens_per_s" in one and "tokens_per_s" in two:
            self.add("two_drafters_speedup", round(two["tokens_per_s"] / one["tokens_per_s"], 3))
            self.add("second_drafter_adds", round(two["first_step_s"] / one["first_step_s"] - 1, 3))

    def keep(self, name: str, found: dict[str, Any]) -> dict[str, Any]:
        size = self.place.size
        shape = {
            "size": size,
            "row_tokens": ROW[size][0],
            "anchors_per_row": ROW[size][1],
            "packs_per_step": PACKS[size],
        }
        self.add(name, shape | found)
        print(name, brief(found), flush=True)
        return found

    def headline(self, name: str, found: dict[str, Any], key: str) -> None:
        if found.get(key) is not None:
            self.add(name, found[key])

    def add(self, name: str, value: Any) -> None:
        self.result.add(name if self.place.size in ("qwen3_8b", "tiny") else f"{name}_{self.place.size}", value)


PARTS = ("start", "slow_target", "fast_target", "replay")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="qwen3_8b", choices=sorted(ROW))
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps to measure in each run")
    parser.add_argument("--seconds", type=float, default=30.0, help="at most, of measuring, in each run")
    parser.add_argument("--start", type=float, default=150.0, help="seconds within which a first step has to come")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    wrong = set(options.parts.split(",")) - set(PARTS)
    if wrong:
        parser.error(f"unknown parts: {', '.join(sorted(wrong))}")
    place = Place(options.size)
    limits = Limits(options.start, options.steps, options.seconds)
    bench = Bench(place, limits, ResultFile("end_to_end", options.out, keep=True))
    began = time.monotonic()
    try:
        for part in options.parts.split(","):
            getattr(bench, part)()
            print(f"{part}: over after {time.monotonic() - began:.0f} s", flush=True)
    finally:
        place.close()


if __name__ == "__main__":
    main()
