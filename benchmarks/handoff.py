"""Features from GPU to GPU: the ring through CUDA IPC against a plain copy in one process, and what of it a training
step feels.

    python -m benchmarks.handoff                      # two GPUs, or one shared by both sides
    CUDA_VISIBLE_DEVICES= python -m benchmarks.handoff --size tiny

Shares are of the plain copy's rate at the same size in the same run. `pipelined` has the next copy enqueued before the
host waits for the one before; `intake` is the drafter's copy thread itself, with its locks and messages.
`exposed_share`: how much longer a pack takes when its features are copied beside it than when they lie there.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from benchmarks.allreduce import visible
from benchmarks.results_file import ResultFile, gpus

WIDTH = {"qwen3_8b": 5 * 4096, "tiny": 5 * 256}
TOKENS = {"qwen3_8b": (384, 1024, 2048, 4096, 8192, 16384), "tiny": (128, 512)}
"""Of one slot: 16 to 671 MB at Qwen3-8B's width; a row of 4096 tokens is 168 MB, four are 671."""
A_ROW = {"qwen3_8b": (4096, 512), "tiny": (128, 8)}
"""Tokens and anchors of the pack that is trained on."""
WAYS = ("raw", "waited", "pipelined", "intake")


class Side:
    """A process of `benchmarks.handoff_sides`."""

    def __init__(self, name: str, seen: list[str]) -> None:
        environment = dict(os.environ)
        if seen:
            environment |= {"CUDA_VISIBLE_DEVICES": ",".join(seen), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
            environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:False"
        command = [sys.executable, "-m", "benchmarks.handoff_sides", name]
        self.name = name
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put('{"error": "the process ended"}')

    def ask(self, within: float, do: str, **order: Any) -> dict[str, Any]:
        """The answer; `error` in it when there is none in time."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self._answers.get(timeout=within))
        except (queue.Empty, OSError) as error:
            self.end()
            answer = {"error": f"{self.name}: no answer to {do} within {within:.0f} s ({type(error).__name__})"}
        assert isinstance(answer, dict)
        return answer

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def copies(sides: dict[str, Side], size: str, tokens: int, within: float) -> dict[str, Any]:
    """One slot size: the plain copy before and after the ring's ways, so that a clock that changes shows."""
    layout = {"shape": (1, tokens, WIDTH[size]), "dtype": "bfloat16" if gpus() else "float32"}
    found: dict[str, Any] = {"tokens": tokens}
    for side, do in (("plain", "copies"), ("owner", "ring_of_shape"), ("reader", "copies"), ("plain", "copies")):
        more = {"ring": found.get("ring", "")} if side == "reader" else {}
        answer = sides[side].ask(within, do, **layout, **more)
        if side == "plain" and "plain" in found and "plain" in answer:
            answer = {"plain": max(found["plain"], answer["plain"]), "plain_twice": [found["plain"], answer["plain"]]}
        found |= answer
        if "error" in found:
            break
    found.pop("ring", None)
    return found | shares(found)


def shares(found: dict[str, Any]) -> dict[str, float]:
    """Of the plain copy.

    >>> shares({"plain": 400.0, "raw": 396.0, "waited": 300.0})
    {'raw_share': 0.99, 'waited_share': 0.75}
    """
    plain = found.get("plain")
    return {f"{way}_share": round(found[way] / plain, 3) for way in WAYS if plain and way in found}


def exposed(sides: dict[str, Side], size: str, packs: int, within: float) -> dict[str, Any]:
    tokens, anchors = A_ROW[size]
    layout = {"shape": (1, tokens, WIDTH[size]), "dtype": "bfloat16" if gpus() else "float32"}
    ring = sides["owner"].ask(within, "ring_of_shape", **layout)
    if "error" in ring:
        return ring
    return sides["reader"].ask(within, "exposed", ring=ring["ring"], size=size, anchors=anchors, packs=packs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="qwen3_8b" if gpus() else "tiny", choices=sorted(WIDTH))
    parser.add_argument("--packs", type=int, default=10, help="packs in a round of the training step; 0 leaves it out")
    parser.add_argument("--seconds", type=float, default=150.0, help="for any one answer, compiling included")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = visible() if gpus() else []
    reader, owner = names[:1], names[1:2] or names[:1]
    result = ResultFile("handoff", options.out)
    result.add("gpus_used", len({*reader, *owner}))
    both = list(dict.fromkeys([*reader, *owner]))
    sides = {"owner": Side("owner", owner), "reader": Side("reader", reader), "plain": Side("plain", both)}
    try:
        for tokens in TOKENS[options.size]:
            result.append("sizes", found := copies(sides, options.size, tokens, options.seconds))
            print(found, flush=True)
            if tokens == A_ROW[options.size][0] and "pipelined_share" in found:
                result.add("pipelined_share", found["pipelined_share"])
        if options.packs:
            result.add("exposed", found := exposed(sides, options.size, options.packs, options.seconds))
            print(found, flush=True)
            if "exposed_share" in found:
                result.add("exposed_share", found["exposed_share"])
    finally:
        for side in sides.values():
            side.end()


if __name__ == "__main__":
    main()
