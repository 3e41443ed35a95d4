"""How every worker process begins: config, what `prepare` found, device. The coordinator loads this without torch."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dfl_mp.config import Config, parse
from dfl_mp.errors import ConfigError
from dfl_mp.gate import pass_gate
from dfl_mp.specs import Prepared

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Job:
    """What a worker is told: its run, its own id, the config, and what `prepare` found."""

    run_dir: Path
    worker: str
    config: Config
    prepared: Prepared


def begin(argv: list[str]) -> Job:
    """Read the command line `RUN_DIR [WORKER]`, once the run is prepared. Raises ConfigError, DeadlineError."""
    os.umask(0o077)
    pass_gate()
    run_dir = Path(argv[1])
    config = parse(json.loads((run_dir / "config.json").read_text()))
    return Job(run_dir, argv[2] if len(argv) > 2 else "", config, Prepared.read(run_dir / "prepared.json"))


def load_libraries(on: torch.device) -> None:
    """What a worker needs, whatever the run: the CUDA context, and there the compiler with its helpers."""
    import torch

    torch.empty(1, device=on)
    if on.type == "cuda":
        import torch._inductor.compile_fx
        from torch._inductor.async_compile import AsyncCompile

        AsyncCompile.warm_pool()


def exit_code_of(error: ConfigError) -> int:
    """Say what the user has to mend; 2."""
    print(f"error: {error}", file=sys.stderr, flush=True)
    return 2


def leave(code: int) -> NoReturn:
    """End the process now: all that outlives it is on disk, and taking torch apart takes more than a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def device() -> torch.device:
    """The one device of this process: its only visible GPU, else the CPU."""
    import torch

    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
