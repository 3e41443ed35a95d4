"""Generations on gloo, as threads of one process would meet: real stores, real process groups, tiny tensors."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from dfl_mp.train.group import GradientGroup, Superseded
from launcher.compose import REPO

NAMES = ("drafter-0.1", "drafter-1.1", "drafter-2.1")
CPU = torch.device("cpu")


def on_all(groups: list[GradientGroup], call) -> list[Any]:  # type: ignore[no-untyped-def]
    with ThreadPoolExecutor(len(groups)) as pool:
        futures: list[Future[Any]] = [pool.submit(call, i, g) for i, g in enumerate(groups)]
        return [f.result(timeout=30) for f in futures]


def test_sum_is_out_of_place_and_broadcast_overwrites(tmp_path: Path) -> None:
    groups = [GradientGroup(tmp_path, name, CPU) for name in NAMES]
    on_all(groups, lambda i, g: g.form(1, NAMES, within=20.0))
    vectors = [torch.full((5,), float(i + 1)) for i in range(3)]
    sums = on_all(groups, lambda i, g: g.all_reduce(vectors[i]))
    assert all(torch.equal(s, torch.full((5,), 6.0)) for s in sums)
    assert [v[0].item() for v in vectors] == [1.0, 2.0, 3.0]
    on_all(groups, lambda i, g: g.broadcast([vectors[i]], NAMES[2]))
    assert [v[0].item() for v in vectors] == [3.0, 3.0, 3.0]


def test_alone_every_collective_is_the_identity(tmp_path: Path) -> None:
    group = GradientGroup(tmp_path, NAMES[0], CPU)
    group.form(1, NAMES[:1], within=1.0)
    assert torch.equal(group.all_reduce(torch.ones(3)), torch.ones(3))


def test_a_peer_that_does_not_come_is_named_at_the_deadline(tmp_path: Path) -> None:
    group = GradientGroup(tmp_path, NAMES[0], CPU)
    with pytest.raises(Superseded, match=r"drafter-1\.1 not within"):
        group.form(1, NAMES[:2], within=0.2)


def test_a_newer_order_ends_the_wait_for_peers(tmp_path: Path) -> None:
    group = GradientGroup(tmp_path, NAMES[0], CPU)
    threading.Timer(0.2, group.supersede, (2,)).start()
    began = time.monotonic()
    with pytest.raises(Superseded, match="2 is ordered"):
        group.form(1, NAMES[:2], within=30.0)
    assert time.monotonic() - began < 10


DIED_AFTER_MEETING = """
import os, sys, threading, time
from pathlib import Path
import torch
import torch.distributed as dist
from dfl_mp.train.group import GradientGroup, Superseded
group = GradientGroup(Path(sys.argv[1]), "drafter-0.1", torch.device("cpu"))
dist.FileStore(str(Path(sys.argv[1]) / ".generations" / "1"), 2).set("drafter-1.1", "here")  # and no more
threading.Timer(0.5, group.supersede, (2,)).start()
began = time.monotonic()
try:
    group.form(1, ("drafter-0.1", "drafter-1.1"), within=30.0)
except Superseded as error:
    print(error, flush=True)
os._exit(0 if time.monotonic() - began < 10 else 1)  # as workers end: gloo's own thread is still connecting
"""


def test_a_newer_order_ends_the_wait_for_a_peer_that_died_after_the_meeting(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DIED_AFTER_MEETING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPO)
    assert done.returncode == 0 and "2 is ordered" in done.stdout, done.stdout + done.stderr


def test_an_order_that_came_before_the_wait_ends_it_too(tmp_path: Path) -> None:
    group = GradientGroup(tmp_path, NAMES[0], CPU)
    group.supersede(2)
    with pytest.raises(Superseded):
        group.form(1, NAMES[:2], within=30.0)


def test_the_next_generation_stands_after_a_failed_one(tmp_path: Path) -> None:
    groups = [GradientGroup(tmp_path, name, CPU) for name in NAMES[:2]]
    with pytest.raises(Superseded):
        groups[0].form(1, NAMES, within=0.1)
    groups[0].supersede(2)
    on_all(groups, lambda i, g: g.form(2, NAMES[:2], within=20.0))
    sums = on_all(groups, lambda i, g: g.all_reduce(torch.ones(1)))
    assert [s.item() for s in sums] == [2.0, 2.0]
