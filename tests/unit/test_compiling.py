"""The shared cache of compiled code: its environment, and whose turn it is to compile."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dfl_mp.compiling import (
    FLASH,
    FLASH_ON,
    INDUCTOR,
    THREADS,
    TRITON,
    Turn,
    compile_threads,
    environment,
    key_of,
    private_folder,
)
from dfl_mp.errors import ConfigError, DeadlineError
from launcher.compose import REPO

HOLD = """
import sys
from pathlib import Path
from dfl_mp.compiling import Turn
with Turn(Path(sys.argv[1]), "k", "drafter-0.1").taken(5.0, print) as leads:
    print(leads, flush=True)
    sys.stdin.readline()
"""


def test_threads() -> None:
    assert [compile_threads(*x) for x in ((1, 1), (16, 1), (16, 2), (192, 6))] == [1, 8, 4, 8]


def test_environment_is_added_and_never_replaces(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    added = environment({"HOME": "/x"}, str(folder), 4)
    flash = {FLASH: str(folder / "flash"), FLASH_ON: "1"}
    assert added == {THREADS: "4", INDUCTOR: str(folder), TRITON: str(folder / "triton"), **flash}
    assert folder.stat().st_mode & 0o777 == 0o700
    own = {INDUCTOR: "/mine", THREADS: "1", FLASH_ON: "0"}
    assert environment(own, str(folder), 4) == {TRITON: "/mine/triton"}
    assert environment({**own, TRITON: "/t"}, None, 4) == {}


def test_default_folder_is_the_users(tmp_path: Path) -> None:
    assert environment({"HOME": str(tmp_path)}, None, 1)[INDUCTOR] == str(tmp_path / ".cache/dfl-mp/compile")
    assert environment({"XDG_CACHE_HOME": str(tmp_path)}, None, 1)[INDUCTOR] == str(tmp_path / "dfl-mp/compile")


def test_an_open_folder_is_closed_and_a_file_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert private_folder(tmp_path).stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cluster\.compile_cache: .*file"):
        private_folder(tmp_path / "file")


def test_key_depends_on_every_part() -> None:
    keys = {key_of(*parts) for parts in (("a", 1), ("a", 2), ("b", 1), ("a", "1"), ("a",))}
    assert len(keys) == 5 and key_of("a", 1) in keys


def test_one_leads_and_the_others_follow_together(tmp_path: Path) -> None:
    compiling, compiled, followers = threading.Event(), threading.Event(), threading.Barrier(2, timeout=10)
    told: list[str] = []

    def lead() -> None:
        with Turn(tmp_path, "k", "drafter-0.1").taken(10.0, told.append) as leads:
            assert leads
            compiling.set()
            compiled.wait(10)

    def follow() -> None:
        with Turn(tmp_path, "k", "drafter-1.1").taken(
            10.0, lambda leader: (told.append(leader), compiled.set())
        ) as leads:
            assert not leads
            followers.wait()  # both are inside at once

    leader = threading.Thread(target=lead)
    leader.start()
    assert compiling.wait(10)
    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in (leader, *threads):
        thread.join(20)
    assert not followers.broken and set(told) == {"drafter-0.1"}


def test_who_comes_later_does_not_wait(tmp_path: Path) -> None:
    for worker, expected in (("drafter-0.1", True), ("drafter-1.1", False), ("drafter-0.2", False)):
        with Turn(tmp_path, "k", worker).taken(0.0, pytest.fail) as leads:
            assert leads is expected
    with Turn(tmp_path, "other", "drafter-0.1").taken(0.0, pytest.fail) as leads:
        assert leads


def test_a_failed_leader_is_followed_by_another(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Turn(tmp_path, "k", "drafter-10.1").taken(0.0, pytest.fail):
        raise ZeroDivisionError
    with Turn(tmp_path, "k", "drafter-1.1").taken(0.0, pytest.fail) as leads:
        assert leads


def test_a_killed_leader_frees_the_turn_and_a_slow_one_has_a_deadline(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    holder = subprocess.Popen(command, cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "True\n"
        with pytest.raises(DeadlineError, match=r"drafter-0\.1"), Turn(tmp_path, "k", "drafter-1.1").taken(0.1, print):
            pytest.fail("taken from a living leader")
    finally:
        holder.kill()
        holder.communicate()
    with Turn(tmp_path, "k", "drafter-1.1").taken(5.0, print) as leads:
        assert leads
