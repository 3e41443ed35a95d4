"""What a machine cannot do is refused before any process starts, in the words of the worker that would have refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dfl_mp.config import with_dtypes
from dfl_mp.errors import ConfigError
from dfl_mp.model import float8
from dfl_mp.needs import UNKNOWN_GPU, Device
from dfl_mp.train.step import choose_attention
from launcher import __main__ as cli
from launcher import compose, fitness
from launcher.machine import Gpu, Machine
from launcher.plan import plan

CPU = Machine(8)
HOPPER = Device(True, "NVIDIA H200", (9, 0))
AMPERE = Device(True, "NVIDIA A100", (8, 0))
ADA = Device(True, "NVIDIA L40S", (8, 9))
AUTO = ("drafter.dtype=auto", "target.dtype=auto")


def on(*devices: Device) -> Machine:
    return Machine(8, tuple(Gpu(str(i), 140_000, 140_000, "", device) for i, device in enumerate(devices)))


def check(machine: Machine, *overrides: str) -> None:
    config = compose.load([*AUTO, *overrides])
    placed = plan(config.cluster, machine, config.train.packs_per_step)
    fitness.check(placed, with_dtypes(config, gpu=bool(machine.gpus)))


@pytest.fixture
def flash_attn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some package of this name is installed."""
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("machine", "overrides", "said"),
    [
        (CPU, ["drafter.attention=flash"], "drafter.attention: flash cannot be used here: it needs a Hopper GPU"),
        (CPU, ["drafter.attention=flex"], "drafter.attention: flex cannot be used here: it needs a GPU"),
        (CPU, ["target.float8=true"], "target.float8: needs a GPU of compute capability 8.9 or newer; there is none"),
        (CPU, ["drafter.float8=true"], "drafter.float8: needs a GPU of compute capability 8.9 or newer; there is none"),
        (on(ADA), ["drafter.attention=flash"], "it needs a Hopper GPU"),
        (on(HOPPER), ["drafter.attention=flash", "drafter.dtype=float32"], "it needs bfloat16, not float32"),
        (on(HOPPER), ["drafter.attention=flash", "drafter.head_dim=32"], "it needs a head_dim of 64 or 128, not 32"),
        (on(HOPPER), ["drafter.attention=flex", "drafter.dtype=float64"], "it needs a dtype below float64"),
        (on(AMPERE), ["target.float8=true"], "target.float8: needs compute capability 8.9; NVIDIA A100 has 8.0"),
        (on(HOPPER, AMPERE), ["drafter.float8=true"], "drafter.float8: needs compute capability 8.9; NVIDIA A100"),
        (on(HOPPER), ["drafter.float8=true", "drafter.dtype=float32"], "drafter.float8: needs drafter.dtype=bfloat16"),
    ],
)
@pytest.mark.usefixtures("flash_attn")
def test_refused(machine: Machine, overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(machine, *overrides)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("machine", "overrides"),
    [
        (CPU, ["drafter.attention=dense"]),
        (on(HOPPER), ["drafter.attention=flash", "drafter.float8=true", "target.float8=true"]),
        (on(AMPERE), ["drafter.attention=flex"]),
        (on(ADA), ["drafter.float8=true", "target.float8=true"]),
        (on(AMPERE, HOPPER), ["drafter.float8=true"]),  # the drafter is on the second
        (on(UNKNOWN_GPU), ["drafter.attention=flash", "target.float8=true"]),  # the worker decides
    ],
)
@pytest.mark.usefixtures("flash_attn")
def test_not_refused(machine: Machine, overrides: list[str]) -> None:
    check(machine, *overrides)


def test_the_worker_says_the_same() -> None:
    cpu = torch.device("cpu")
    for field, ask in (
        ("drafter.attention=flash", lambda: choose_attention("flash", "float32", cpu, 64)),
        ("drafter.attention=flex", lambda: choose_attention("flex", "float32", cpu, 64)),
        ("drafter.float8=true", lambda: float8.require("drafter.float8", cpu, torch.float32)),
    ):
        with pytest.raises(ConfigError) as early:
            check(CPU, field)
        with pytest.raises(ConfigError) as late:
            ask()
        assert str(early.value) == str(late.value)


def test_exit_code_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cli.run(["train", "drafter.attention=flex", f"run.dir={tmp_path / 'run'}"]) == 2
    assert capsys.readouterr().err == "error: drafter.attention: flex cannot be used here: it needs a GPU\n"
    assert list(tmp_path.iterdir()) == []
