"""FlashAttention-4's kernels, compiled by a process of its own while torch compiles the step around them.

Either takes half of a cold start. The process loads the library at once, waits for one line that says which kernels
are wanted, compiles them into the shared cache (FLASH_ATTENTION_CUTE_DSL_CACHE_DIR) and ends; the step loads them from
there. Whatever goes wrong with it, the step then compiles them itself.

    echo '{"spec": …, "rows": 1}' | python -m dfl_mp.model.flash_ahead
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time

import torch

from dfl_mp.model.blocks import make_blocks
from dfl_mp.model.flash import before_first_use, flash_attention, load_library
from dfl_mp.model.mask import make_masks
from dfl_mp.model.shapes import PackTensors
from dfl_mp.specs import DrafterSpec

WITHIN_S = 120.0


class FlashAhead:
    """The process, seen from the drafter that started it. It writes to the drafter's log."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE, text=True)

    def compile(self, spec: DrafterSpec, rows: int) -> None:
        """Begin; whoever uses the library next in this process waits for the end, `WITHIN_S` at most."""
        self._say(json.dumps({"spec": spec.model_dump(), "rows": rows}))
        before_first_use(self._wait)

    def drop(self) -> None:
        """The kernels are in the cache already, or not wanted."""
        self._say("")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has failed, and said so in the log
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.close()

    def _wait(self) -> None:
        try:
            self._process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def compile_kernels(spec: DrafterSpec, rows: int, device: torch.device) -> None:
    """Run attention once forward and backward on little data of the same kind: lengths are no part of a kernel."""
    anchors, tokens, heads = 1024 // spec.block_size, 512, (spec.num_attention_heads, spec.num_key_value_heads)
    zeros = torch.zeros(rows, tokens, dtype=torch.int64, device=device)
    positions = torch.arange(tokens, device=device).expand(rows, -1).contiguous()
    anchor_BN = torch.arange(1, anchors + 1, device=device).expand(rows, -1).contiguous()
    pack = PackTensors(zeros, zeros, positions, zeros.bool(), anchor_BN)
    masks = make_masks(pack, make_blocks(pack, spec.block_size, 0, 4.0), spec, "flash")
    queries = anchors * spec.block_size
    lengths = (queries, tokens + queries, tokens + queries)
    q, k, v = (
        torch.randn(rows, length, n, spec.head_dim, device=device, dtype=torch.bfloat16).transpose(1, 2)
        for length, n in zip(lengths, (heads[0], heads[1], heads[1]), strict=True)
    )
    for mask in {id(mask): mask for mask in (masks.full, masks.sliding) if mask is not None}.values():
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        out = flash_attention(*inputs, mask, spec.head_dim**-0.5)  # type: ignore[arg-type]
        torch.autograd.grad(out, inputs, torch.ones_like(out))
    torch.cuda.synchronize(device)


def main() -> int:
    began = time.monotonic()
    device = torch.device("cuda", 0)
    load_library()
    line = sys.stdin.readline().strip()
    if not line:
        return 0
    asked = time.monotonic()
    wanted = json.loads(line)
    compile_kernels(DrafterSpec(**wanted["spec"]), wanted["rows"], device)
    now = time.monotonic()
    print(f"flash kernels are in the cache: {now - asked:.1f} s, after {asked - began:.1f} s of loading", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
