"""Chaos runs beside the undisturbed run that they have to equal."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos.driver import Driver, Failed
from tests.chaos.plan import Fault, plan
from tests.chaos.run import CHAOTIC, QUIET, Run
from tests.chaos.states import STATES
from tests.chaos.verdict import wrong
from tests.process.tiny_run import write_inputs

END_S = 600.0


def cluster(seed: int) -> tuple[str, ...]:
    """One slot a target or two; every fourth run has three drafters and two targets."""
    large = seed % 4 == 3
    slots = f"cluster.slots_per_target={1 + seed % 2}"
    return f"cluster.drafters={2 + large}", f"cluster.targets={1 + large}", slots


def noticed(run: Run) -> Counter[str]:
    """What else the run has said of itself: an `order_late` that no stopped worker explains is a stall."""
    wanted = ("order_late", "worker_stuck", "rewound", "generation", "coordinator_restart", "refused_message")
    return Counter(event["event"] for event in run.events() if event["event"] in wanted)


class Session:
    """`hits`: (group, state, kind of worker, fault) of all runs so far."""

    def __init__(self, folder: Path, steps: int, say: Callable[[str], None]) -> None:
        self.folder, self.steps, self.say = folder, steps, say
        self.hits: Counter[tuple[str, ...]] = Counter()
        self.kills = 0
        folder.mkdir(exist_ok=True)
        self._inputs = write_inputs(folder)
        self._quiet = Run(folder / "quiet", "tests.chaos.quiet")
        self._start(self._quiet, "cluster.drafters=1")

    def run(self, seed: int, faults: int | Sequence[Fault]) -> str:
        """One run with the faults of the seed; what is wrong with it, empty when nothing is."""
        chosen = plan(seed, faults) if isinstance(faults, int) else faults
        run_dir = self.folder / f"seed-{seed}"
        run = Run(run_dir, "tests.chaos.launcher")
        driver = Driver(run, self.steps, seed, self.say)
        try:
            self._start(run, *cluster(seed), *CHAOTIC)
            driver.work_off(chosen)
            code = run.wait(END_S)
            self.say("      " + "  ".join(f"{n} {what}" for what, n in sorted(noticed(run).items())))
        except (Failed, TimeoutError, subprocess.TimeoutExpired) as error:
            return str(error)
        finally:
            run.close()
            self.hits += driver.hits
            self.kills += driver.kills
        if code != 0:
            return f"exit code {code}:\n{run.out()}"
        return "; ".join(filter(None, [*run.crashes(), self._judge(run_dir)]))

    def _start(self, run: Run, *overrides: str) -> None:
        steps = f"train.max_steps={self.steps}"
        run.start("train", f"run.dir={run.dir}", *self._inputs, *QUIET, steps, *overrides)

    def _judge(self, run_dir: Path) -> str:
        if self._quiet.wait(END_S) != 0:
            return f"the undisturbed run failed:\n{self._quiet.out()}"
        return "; ".join(wrong(run_dir, self._quiet.dir, self.steps))

    def close(self) -> None:
        """No process is left."""
        self._quiet.close()

    def never(self) -> list[str]:
        """States at which nobody was hit."""
        hit = {key[1] for key in self.hits}
        return [state.key for state in STATES if state.key not in hit]

    def table(self) -> str:
        """Who was hit where, how often."""
        rows = [f"{group:28} {state:32} {role:12} {what:24} {n:4}" for (group, state, role, what), n in self._sorted()]
        rows.append(f"{self.kills} killed, {sum(self.hits.values())} faults in {len({k[1] for k in self.hits})} states")
        if self.never():
            rows.append(f"NEVER HIT: {', '.join(self.never())}")
        return "\n".join(rows)

    def _sorted(self) -> list[tuple[tuple[str, ...], int]]:
        return sorted(self.hits.items())
