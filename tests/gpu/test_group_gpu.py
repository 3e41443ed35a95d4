"""NCCL generations: a peer killed in the middle of an all-reduce, abort from another thread, the next generation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu.by_process import Script

TWO = torch.cuda.is_available() and torch.cuda.device_count() >= 2
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not TWO, reason="needs two CUDA devices")]

MEMBER = """
import sys, threading, time, torch
from pathlib import Path
from dfl_mp.train.group import GradientGroup, Superseded
me, folder = sys.argv[1], Path(sys.argv[2])
device = torch.device("cuda", 0)
group = GradientGroup(folder, me, device)
vector = torch.full((64_000_000,), float(me[-3]) + 1, device=device)
def listen():
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "abort":
            print("ABORTING", time.monotonic()); group.supersede(2)
        else:
            orders.append((word, rest)); ready.release()
orders, ready = [], threading.Semaphore(0)
threading.Thread(target=listen, daemon=True).start()
print("UP")
while True:
    ready.acquire(); word, rest = orders.pop(0)
    try:
        if word == "form":
            began = time.monotonic()
            group.form(int(rest[0]), tuple(rest[1:]), within=60.0); print("FORMED", time.monotonic() - began)
        if word == "reduce":
            print("ENTER"); began = time.monotonic(); into = group.all_reduce(vector)
            print("SUM", into[7].item(), time.monotonic() - began)
        if word == "memory":
            print("OWN", vector.mean().item())
    except Superseded as error:
        print("SUPERSEDED", time.monotonic(), error)
"""


def test_a_peer_dies_in_the_reduce_and_the_next_generation_stands(tmp_path: Path) -> None:
    a = Script(MEMBER, 0, "drafter-0.1", str(tmp_path))
    b = Script(MEMBER, 1, "drafter-1.1", str(tmp_path))
    for script in (a, b):
        script.expect("UP")
        script.tell("form 1 drafter-0.1 drafter-1.1")
    for script in (a, b):
        script.expect("FORMED")
        script.tell("reduce")
    for script in (a, b):
        assert script.expect("SUM").split()[0] == "3.0"
    a.tell("reduce")
    a.expect("ENTER")
    b.kill()
    a.tell("abort")
    aborted = float(a.expect("ABORTING"))
    raised = float(a.expect("SUPERSEDED").split()[0])
    assert raised - aborted < 30
    a.tell("memory")
    assert a.expect("OWN") == "1.0", "the gradient is intact"
    c = Script(MEMBER, 1, "drafter-1.2", str(tmp_path))
    c.expect("UP")
    for script in (a, c):
        script.tell("form 2 drafter-0.1 drafter-1.2")
    for script in (a, c):
        script.expect("FORMED")
        script.tell("reduce")
    for script in (a, c):
        assert script.expect("SUM").split()[0] == "3.0"
    print(f"abort to exception: {raised - aborted:.2f} s")
    for script in (a, c):
        script.kill()


def test_a_generation_that_nobody_else_joins_has_a_deadline(tmp_path: Path) -> None:
    a = Script(MEMBER.replace("within=60.0", "within=3.0"), 0, "drafter-0.1", str(tmp_path))
    a.expect("UP")
    a.tell("form 1 drafter-0.1 drafter-1.1")
    a.expect("SUPERSEDED", within=60.0)
    a.kill()
