"""Names that a run's processes share outside its folder. A leaf: no torch."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def run_key(run_dir: Path) -> str:
    """Twelve hex digits that name a run on this machine: a digest of its resolved folder."""
    return hashlib.sha256(os.fsencode(run_dir.resolve())).hexdigest()[:12]


def shm_prefix(run_dir: Path) -> str:
    """What the names of the run's files in /dev/shm begin with."""
    return f"dfl-mp-{run_key(run_dir)}-"
