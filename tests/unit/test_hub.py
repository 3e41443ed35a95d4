"""A model that cannot be had is one readable line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import errors

from dfl_mp.model.hub import reason
from launcher.compose import REPO

DESCRIBE = """
from dfl_mp.errors import ConfigError
from dfl_mp.model.target_spec import describe_target
from launcher import compose
try:
    describe_target(compose.load(["target.path=no-such-owner/no-such-model"]).target)
except ConfigError as error:
    print(error)
"""


def test_offline_and_not_in_the_cache(tmp_path: Path) -> None:
    environment = dict(os.environ, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", DESCRIBE], cwd=REPO, env=environment, capture_output=True, text=True)
    (line,) = done.stdout.splitlines()
    assert line.startswith("target.path: no-such-owner/no-such-model: no such folder here") and len(line) < 160
    assert "://" not in line


def test_the_cause_is_told_not_what_wraps_it() -> None:
    with pytest.raises(OSError) as caught:
        try:
            raise errors.OfflineModeIsEnabled("offline")
        except ConnectionError as error:
            raise OSError("We could not connect to the server. See the pages on ...") from error
    assert "the hub is off" in reason(caught.value)


def test_other_errors_are_quoted_and_cut() -> None:
    assert reason(ValueError("no key\n  'x'")) == "no key 'x'"
    assert reason(KeyError()) == "KeyError"
    cut = reason(ValueError("word " * 100))
    assert 290 < len(cut) <= 301 and cut.endswith("word …")
