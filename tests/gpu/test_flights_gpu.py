"""A pack that makes the GPU fail is named by the black box, though the fault shows later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dfl_mp import blackbox
from launcher.compose import REPO

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

WORKER = """
import sys, torch
from pathlib import Path
from dfl_mp.blackbox import BlackBox
from dfl_mp.roles.flights import Flights, OneByOne, cuda_mark
folder, worker = Path(sys.argv[1]), sys.argv[2]
device = torch.device("cuda", 0)
one_by_one = OneByOne(folder, worker, per_step=4)
flights = Flights(BlackBox(folder, worker), cuda_mark, one_by_one)
matrix, table = torch.randn(8192, 8192, device=device), torch.zeros(16, device=device)
good, bad = torch.zeros(4, dtype=torch.long, device=device), torch.full((4,), 1 << 20, device=device)
matrix @ matrix, table[good]
torch.cuda.synchronize()
for pack in range(4):
    with flights.giving(pack):
        for _ in range(8):
            matrix = matrix @ matrix
        table[bad if pack == 2 else good]
print("ENQUEUED", flush=True)
flights.wait()
"""


def run(folder: Path, worker: str) -> tuple[str, int | None]:
    """(output, the pack that is named afterwards) of a worker that ends by a fault."""
    ended = subprocess.run(
        [sys.executable, "-c", WORKER, str(folder), worker], cwd=REPO, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode != 0 and "CUDA error" in ended.stderr, ended.stderr[-2000:]
    return ended.stdout, blackbox.read(folder, worker)[1]


def test_a_pack_that_makes_the_gpu_fail_is_named(tmp_path: Path) -> None:
    """The first process has enqueued all four packs; it may name a neighbour that it had not seen end. The next one
    waits for each, so it names the right one."""
    said, named = run(tmp_path, "drafter-0.1")
    assert said == "ENQUEUED\n", "the fault shows before the host waits: the test shows nothing"
    assert named in (1, 2)
    said, named = run(tmp_path, "drafter-0.2")
    assert (said, named) == ("", 2)
