"""A whole node: which split of its GPUs is best, how drafters scale, what kills cost, starts from nothing, a long run.

    python -m benchmarks.node splits scaling              # Qwen3-8B shapes
    python -m benchmarks.node splits --size 27b
    python -m benchmarks.node kills cold
    python -m benchmarks.node soak --soak 1200
    CUDA_VISIBLE_DEVICES= python -m benchmarks.node all --size tiny --steps 4 --soak 20

Parts run one after another and add to `node-<device>-<date>.json` as they end; what fails leaves its error there. Each
run is bounded: by `--start` until its first step, then by `--steps` or `--seconds`. `splits` and `kills` run the whole
target with random weights; `scaling` replays features from rings, so that drafters never wait. `auto_vs_best`: tokens/s
of the split that `cluster=auto` takes over those of the best; `drafter_scaling_N`: tokens/s of N drafters over N times
those of one.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.node_kills import kills
from benchmarks.node_parts import Bench, cold, scaling, soak, splits
from benchmarks.results_file import ResultFile, gpus
from benchmarks.runs import ROW, Limits, Place

PARTS = {"splits": splits, "scaling": scaling, "kills": kills, "cold": cold, "soak": soak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "all"])
    parser.add_argument("--size", default="qwen3_8b", choices=sorted(ROW))
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps to measure in each run")
    parser.add_argument("--seconds", type=float, default=30.0, help="at most, of measuring, in each run")
    parser.add_argument("--start", type=float, default=150.0, help="seconds within which a first step has to come")
    parser.add_argument("--split", metavar="TxD", help="of kills and soak, as 5x3; what auto takes when left out")
    parser.add_argument("--soak", type=float, default=600.0, help="seconds of the long run")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    place = Place(options.size)
    limits = Limits(options.start, options.steps, options.seconds)
    asked = tuple(int(n) for n in options.split.split("x")) if options.split else None
    result = ResultFile("node", options.out, keep=True)
    bench = Bench(place, limits, result, len(gpus()), asked, options.soak)  # type: ignore[arg-type]
    try:
        for name in PARTS if "all" in options.parts else options.parts:
            began = time.monotonic()
            PARTS[name](bench)
            print(f"{name}: over after {time.monotonic() - began:.0f} s", flush=True)
    finally:
        place.close()


if __name__ == "__main__":
    main()
