"""Whoever watched a run is gone: its terminal is closed, or the reader of its output has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dfl_mp.log import read_lines
from launcher.compose import REPO
from launcher.run_dir import sweep
from tests.process.launches import QUICK, STUB_RUN, until

RUN_ON_A_TERMINAL = f"import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{STUB_RUN}"


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"
    sweep(tmp_path / "run")


@contextlib.contextmanager
def stub_run(run_dir: Path, mode: str, code: str, stdin: int, out: int) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher in a session of its own, whose stdout and stderr are `out`; killed at the end if it still is there."""
    environment = dict(os.environ, DFL_STUB=mode, CUDA_VISIBLE_DEVICES="", PYTHONPATH=str(REPO), TERM="xterm")
    command = [sys.executable, "-c", code, *QUICK, f"run.dir={run_dir}"]
    process = subprocess.Popen(command, env=environment, stdin=stdin, stdout=out, stderr=out, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def events(run_dir: Path, kind: str) -> list[dict]:
    return [event for event in read_lines(run_dir / "events.jsonl") if event["event"] == kind]


def steps(run_dir: Path) -> int:
    return len(read_lines(run_dir / "metrics.jsonl"))


def read_until(master: int, condition: Callable[[], object]) -> None:
    """Read what the terminal shows, so that it never fills, until the condition comes true."""
    end = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < end
        os.set_blocking(master, False)
        with contextlib.suppress(BlockingIOError):
            os.read(master, 65536)
        time.sleep(0.02)


@pytest.mark.parametrize("again", [False, True], ids=["once", "the shell says it too"])
def test_a_closed_terminal_ends_the_run_in_order(run_dir: Path, again: bool) -> None:
    master, slave = os.openpty()
    with stub_run(run_dir, "long", RUN_ON_A_TERMINAL, slave, slave) as process:
        os.close(slave)
        read_until(master, lambda: steps(run_dir) > 3)
        os.close(master)
        if again:
            until(lambda: any(line["kind"] == "Shutdown" for line in read_lines(run_dir / "told.jsonl")))
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)
        assert process.wait(20) == 1
    assert [event["reason"] for event in events(run_dir, "run_stopped")] == ["interrupted"]
    assert {e["worker"]: e["signal"] for e in events(run_dir, "worker_exited")} == dict.fromkeys(
        ("prepare", "coordinator", "target-0", "drafter-0", "drafter-1")
    ), "every worker was asked to stop and did"


def test_without_a_reader_the_run_goes_on(run_dir: Path) -> None:
    read_end, write_end = os.pipe()
    with stub_run(run_dir, "slow", STUB_RUN, subprocess.DEVNULL, write_end) as process:
        os.close(write_end)
        assert os.read(read_end, 3) == b"run"
        os.close(read_end)
        assert process.wait(30) == 0
    assert steps(run_dir) == 10 and (run_dir / "summary.json").exists()
    assert [event["reason"] for event in events(run_dir, "run_stopped")] == ["done"]


def test_wrong_input_without_a_reader_is_still_wrong_input(run_dir: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with stub_run(run_dir, "refuse", STUB_RUN, subprocess.DEVNULL, write_end) as process:
        os.close(write_end)
        assert process.wait(30) == 2
