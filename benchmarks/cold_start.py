"""A drafter's start with an empty and with a full cache of compiled code: one alone, and a leader with a follower.

    python -m benchmarks.cold_start --size qwen3_8b --rows 1 --tokens 2048 --anchors 512 --seconds 300

Every worker is a fresh process on the first GPU. `cold_*`: both start together with an empty cache, the follower waits
for the leader; `warm`: one alone afterwards. Written as soon as a part is there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dfl_mp import compiling
from dfl_mp.startup import Startup, process_age_s

CHILD = "DFL_COLD_START_CHILD"


def child(options: argparse.Namespace, name: str) -> None:
    """Start as a drafter does and print where the seconds went."""
    startup = Startup()
    import torch

    from benchmarks.shapes import VOCAB, drafter_spec, random_pack, random_step
    from dfl_mp.train import proof
    from dfl_mp.train.compiled import CompileLog
    from dfl_mp.train.step import compiled_graphs

    startup.mark("python")
    device = torch.device("cuda", 0)
    torch.empty(1, device=device)
    startup.mark("cuda")
    step, log = random_step(options.size, device), CompileLog()
    pack = random_pack(options.rows, options.tokens, options.anchors, VOCAB[options.size]).to(device)
    width = 5 * drafter_spec(options.size).hidden_size
    features = torch.randn(options.rows, options.tokens, width, device=device, dtype=torch.bfloat16)
    torch.cuda.synchronize()
    startup.mark("load")
    turn = compiling.turn("cold-start", name)
    assert turn is not None
    with ExitStack() as stack:
        leads = stack.enter_context(turn.taken(options.seconds, lambda leader: None))
        startup.mark("wait")
        step.warm_up(features, pack)
        startup.mark("compile")
    queries = options.anchors * step.spec.block_size
    dense = proof.dense_bytes(options.rows, step.spec.num_attention_heads, queries, options.tokens + queries)
    seen = proof.look(lambda: step.accumulate(features, pack, 0), step.attention, compiled_graphs(), dense)
    startup.mark("proof")
    found = {"leads": leads, "ready_s": round(process_age_s(), 2), **startup.seconds, "compiled": log.stages()}
    found |= {"proof_says": str(seen), "fell_back": proof.fallback_reason(seen, step.spec.num_layers)}
    print(json.dumps(found), flush=True)


def start(cache: Path, name: str, threads: int) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key not in compiling.CACHES}
    environment |= compiling.environment(environment, str(cache), threads) | {CHILD: name}
    command = [sys.executable, "-m", "benchmarks.cold_start", *sys.argv[1:]]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str], within: float) -> dict[str, Any]:
    """The worker's line, or why there is none."""
    try:
        out, _ = process.communicate(timeout=max(1.0, within))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"error": "not done in time"}
    lines = [line for line in out.splitlines() if line.startswith("{")]
    found = json.loads(lines[-1]) if lines else {"error": f"exit code {process.returncode}"}
    print(json.dumps(found), flush=True)
    return found  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="qwen3_8b")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--anchors", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=300.0, help="for all of it")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if CHILD in os.environ:
        return child(options, os.environ[CHILD])
    from benchmarks.results_file import ResultFile, require_cuda

    require_cuda("cold_start")
    end = time.monotonic() + options.seconds
    file = ResultFile("cold_start", options.out)
    threads = compiling.compile_threads(len(os.sched_getaffinity(0)), leaders=2)
    file.add("compile_threads", threads)
    with tempfile.TemporaryDirectory() as folder:
        both = [start(Path(folder), f"drafter-{i}.1", threads) for i in range(2)]
        for process in both:
            found = result(process, end - time.monotonic())
            file.add("cold_leader" if found.get("leads") else "cold_follower", found)
        file.add("warm", result(start(Path(folder), "drafter-2.1", threads), end - time.monotonic()))


if __name__ == "__main__":
    main()
