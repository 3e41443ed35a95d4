"""Placement of workers, restarts, and what is read from nvidia-smi: all pure."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfl_mp.config import ClusterConfig
from dfl_mp.errors import ConfigError
from dfl_mp.needs import UNKNOWN_GPU, Device
from launcher.machine import Gpu, Machine, look, read_gpus
from launcher.plan import plan, split_gpus, work_share
from launcher.policy import restart_at


def cluster(targets: int | None = None, drafters: int | None = None) -> ClusterConfig:
    fields = {"slots_per_target": 4, "threads_per_worker": 1, "transport": "auto", "restarts_per_worker": 3}
    fields |= {"compile_cache": None, "on_recompile": "event"}
    return ClusterConfig(targets=targets, drafters=drafters, **fields)


def machine(num_gpus: int, busy: tuple[int, ...] = ()) -> Machine:
    gpus = (Gpu(str(i), 140_000, 140_000, "process 7 (x)" if i in busy else "") for i in range(num_gpus))
    return Machine(64, tuple(gpus))


@pytest.mark.parametrize(("cores", "packs", "drafters"), [(1, 2, 1), (2, 2, 2), (64, 24, 2), (8, 1, 1)])
def test_cpu(cores: int, packs: int, drafters: int) -> None:
    placed = plan(cluster(), Machine(cores), packs)
    assert [p.name for p in placed.targets] == ["target-0"]
    assert [p.name for p in placed.drafters] == [f"drafter-{i}" for i in range(drafters)]
    assert all(p.gpu is None for p in placed.workers)


@pytest.mark.parametrize(
    ("asked", "on", "packs", "field"),
    [
        ((None, 3), Machine(8), 2, "cluster.drafters"),
        ((1, 8), Machine(2), 24, "cluster.drafters"),
        ((8, 1), Machine(2), 24, "cluster.targets"),
        ((1, 3), machine(2), 24, "cluster.drafters"),
        ((3, 1), machine(2), 24, "cluster.targets"),
        ((None, None), machine(2, busy=(0, 1)), 24, "no free GPU"),
    ],
)
def test_refused(asked: tuple[int | None, int | None], on: Machine, packs: int, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        plan(cluster(*asked), on, packs)


@pytest.mark.parametrize(
    ("asked", "num_gpus", "targets", "drafters"),
    [
        ((None, None), 1, "0", "0"),
        ((None, None), 2, "0", "1"),
        ((None, None), 3, "0", "12"),
        ((None, None), 4, "01", "23"),
        ((5, None), 8, "01234", "567"),
        ((None, 2), 8, "012345", "67"),
        ((1, 2), 2, "0", "01"),
        ((2, 2), 2, "01", "01"),
    ],
)
def test_gpus(asked: tuple[int | None, int | None], num_gpus: int, targets: str, drafters: str) -> None:
    placed = plan(cluster(*asked), machine(num_gpus), 24)
    assert "".join(p.gpu.name for p in placed.targets if p.gpu) == targets
    assert "".join(p.gpu.name for p in placed.drafters if p.gpu) == drafters


def test_occupied_gpu_is_skipped_and_named() -> None:
    placed = plan(cluster(), machine(3, busy=(1,)), 24)
    assert {p.gpu.name for p in placed.workers if p.gpu} == {"0", "2"}
    assert any("GPU 1" in note and "process 7" in note for note in placed.notes)


@settings(deadline=None, max_examples=200)
@given(
    targets=st.none() | st.integers(1, 9),
    drafters=st.none() | st.integers(1, 9),
    num_gpus=st.integers(0, 8),
    packs=st.integers(1, 30),
)
def test_drafters_never_share_and_always_work(
    targets: int | None, drafters: int | None, num_gpus: int, packs: int
) -> None:
    try:
        placed = plan(cluster(targets, drafters), machine(num_gpus), packs)
    except ConfigError:
        return
    used = [p.gpu for p in placed.drafters if p.gpu]
    assert len(set(used)) == len(used)
    assert placed.targets and 1 <= len(placed.drafters) <= packs
    assert targets is None or len(placed.targets) == targets
    assert drafters is None or len(placed.drafters) == drafters
    shared = {p.gpu for p in placed.targets} & set(used)
    assert not shared or len(placed.workers) > num_gpus


def test_work_share() -> None:
    assert work_share(24, 5) == pytest.approx(24 / 25)
    assert work_share(24, 3) == 1.0
    assert any("67%" in note for note in plan(cluster(1, 3), Machine(8), 4).notes)
    assert plan(cluster(1, 3), Machine(8), 24).notes == ()


def test_split_uses_every_gpu() -> None:
    assert all(sum(split_gpus(n)) == n for n in range(2, 17))


def test_restarts() -> None:
    assert restart_at([5.0], 3) == 5.0
    assert restart_at([5.0, 6.0], 3) == 6.5
    assert restart_at([5.0, 6.0, 7.0], 3) == 8.0
    assert restart_at([5.0, 6.0, 7.0, 8.0], 3) is None
    assert restart_at([5.0], 0) is None
    assert restart_at([0.0] * 50, 50) == 10.0 and math.isfinite(restart_at([0.0] * 900, 900) or 0.0)


DEVICES = [
    ["0", "GPU-aaa", "4", "143000", "143771"],
    ["1", "GPU-abb", "30000", "113000", "143771"],
    ["2", "GPU-ccc", "0", "143771", "143771"],
]
PROCESSES = [["GPU-abb", "77", "python"], ["GPU-aaa", "78", "tiny"]]


@pytest.mark.parametrize(
    ("visible", "names"),
    [(None, "012"), ("2,0", "20"), ("GPU-ccc", "2"), ("GPU-a", ""), ("0,9,2", "0"), ("1", "1")],
)
def test_visible_gpus(visible: str | None, names: str) -> None:
    gpus = read_gpus(DEVICES, PROCESSES, visible)
    assert "".join(gpu.name for gpu in gpus) == names
    assert {gpu.name: gpu.busy_by for gpu in gpus if gpu.busy_by} in ({}, {"1": "process 77 (python)"})


@pytest.mark.parametrize(
    ("kind", "device"),
    [
        ([], UNKNOWN_GPU),
        (["9.0", "NVIDIA H200"], Device(True, "NVIDIA H200", (9, 0))),
        (["[N/A]", "A card", "of many words"], Device(True, "A card, of many words", None)),
    ],
)
def test_kinds_of_gpus(kind: list[str], device: Device) -> None:
    [gpu] = read_gpus([[*DEVICES[0], *kind]], [], None)
    assert gpu.device == device


def test_no_gpu_is_looked_for_when_the_user_hides_them() -> None:
    assert look({"CUDA_VISIBLE_DEVICES": ""}).gpus == ()
    assert look({"CUDA_VISIBLE_DEVICES": "-1"}).num_cores >= 1


SMI = """#!/bin/sh
touch "$0.asked"; count=$(wc -c < "$0.asked"); printf . >> "$0.asked"
used=30000; [ "$count" -ge 4 ] && used=0
case "$1" in
  --query-gpu=*) echo "0, GPU-a, $used, 100000, 140000, 9.0, NVIDIA H200";;
  *) [ "$used" = 0 ] || echo "GPU-a, 7, [No data]";;
esac
"""


def test_a_gpu_that_a_killed_process_still_holds_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("launcher.machine.LOOK_EVERY_S", 0.01)
    assert [gpu.busy_by for gpu in look({}).gpus] == [""]
