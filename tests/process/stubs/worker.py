from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from dfl_mp.blackbox import BlackBox
from dfl_mp.gate import pass_gate
from dfl_mp.messages import Heartbeat, Status, Stop, incarnation_of
from dfl_mp.transport.links import Link

STATUS = Status(state="working", since_s=0.0, step=0, busy_s=1.0, wait_s=1.0, packs=0)


def live(run_dir: Path, worker: str, mode: str) -> None:
    pass_gate()
    box = BlackBox(run_dir, worker)
    if mode == "broken" and worker.startswith("drafter-1"):
        raise RuntimeError("the stub does not start")
    (run_dir / f"env.{worker}.json").write_text(json.dumps(dict(os.environ)))
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(["sleep", "100"], start_new_session=False)
    link = Link(run_dir, worker)
    box.ready()
    greeted = False
    while True:
        if link.broken:
            link.reopen()
            greeted = False
        if not greeted:
            greeted = link.send(Heartbeat(status=STATUS), within=0.05)
        message = link.receive(0.05)
        if mode == "crashing" and worker.startswith("drafter-0"):
            raise ZeroDivisionError(f"the stub {worker} crashes")
        if mode == "poison" and greeted and worker.startswith("drafter-0") and incarnation_of(worker) == 1:
            box.computing(7)
            os.kill(os.getpid(), signal.SIGSEGV)
        if isinstance(message, Stop) and mode != "deaf":
            return


if __name__ == "__main__":
    live(Path(sys.argv[1]), sys.argv[2], os.environ.get("DFL_STUB", ""))
