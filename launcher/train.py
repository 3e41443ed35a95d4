"""`python -m launcher train`: config, plan and folder, then the supervisor; the run's end in words and exit code."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from dfl_mp import compiling
from dfl_mp.config import Config, with_dtypes
from dfl_mp.errors import ConfigError, WorkerFailed
from dfl_mp.inputs import find_file, find_target
from dfl_mp.log import read_lines
from dfl_mp.specs import Prepared
from launcher import compose, cost, fitness, lasting, machine, memory, status, summary
from launcher.crew import MODULES
from launcher.detach import Report
from launcher.plan import Plan, plan
from launcher.run_dir import RunDir, open_run
from launcher.signals import Signals
from launcher.stop import Interrupted
from launcher.supervisor import Supervisor
from launcher.tail import short
from launcher.words import plural

FINISHED = "{0} is finished: there is nothing to resume; its summary: make status RUN={0}"


def main(
    overrides: Sequence[str],
    modules: Mapping[str, str] = MODULES,
    report: Report | None = None,
    load: Callable[[Sequence[str]], Config] = compose.load,
) -> int:
    """Train; returns 0 done, 1 failed or stopped. With `report` its output goes into the run's folder; `load` makes
    the config from the overrides.

    Raises ConfigError when the user's input is wrong.
    """
    lasting.install()
    signals = Signals()
    try:
        config = load(overrides)
        _find_files(config)
        placed = plan(config.cluster, machine.look(), config.train.packs_per_step, cost.of(config))
        config = with_dtypes(config, gpu=placed.workers[0].gpu is not None)
        fitness.check(placed, config)
        if placed.workers[0].gpu is not None:
            os.environ.update(compiling.environment(os.environ, config.cluster.compile_cache, placed.compile_threads))
        run, config = open_run(config)
        try:
            if run.resumed and status.over(run.path)["reason"] == "done":
                print(FINISHED.format(short(run.path)))
                return 0
            if report is not None:
                report.move_into(run.path)
            return _supervise(Supervisor(run, config, placed, signals, modules), report)
        except ConfigError:
            run.discard()
            raise
        finally:
            run.close()
    finally:
        signals.close()


def _find_files(config: Config) -> None:
    """A path mistyped is told at once, before a folder is made. Raises ConfigError."""
    find_target(config.target.path)
    find_file(config.data.path, "data.path", "train.jsonl")
    if config.data.prompts is not None:
        find_file(config.data.prompts, "data.prompts", "heldout.jsonl")


def _supervise(supervisor: Supervisor, report: Report | None) -> int:
    try:
        return _live(supervisor, report)
    finally:
        supervisor.console.close()


def _live(supervisor: Supervisor, report: Report | None) -> int:
    run, config, console = supervisor.run, supervisor.config, supervisor.console
    say, note = console.say, supervisor.crew.note
    began = time.monotonic()
    reason, said = "failed", ""
    try:
        say(f"{'resuming' if run.resumed else 'run'} {run.path}{_from_where(run, config)}")
        _describe(supervisor)
        names = [place.name for place in supervisor.plan.workers]
        note("run_started", resumed=run.resumed, workers=names)
        supervisor.prepare()
        for line in memory.check(supervisor.plan, config, Prepared.read(run.path / "prepared.json")):
            say(line)
        run.accept()
        if report is not None:
            report.prepared()
        if not supervisor.trained():
            supervisor.train()
        supervisor.evaluate()
        reason = "done"
    except Interrupted:
        reason = "interrupted"
        console.close()
        say(f"stopped{_after(run)}; resume with: make resume RUN={short(run.path)}")
    except WorkerFailed as error:
        said = str(error)
        console.close()
        say(f"error: {error}")
        say(f"failed{_after(run)}; logs are in {run.logs}")
    except ConfigError as error:
        reason, said = "wrong input", str(error)
        console.close(erase=True)
        raise
    finally:
        note("run_stopped", reason=reason, seconds=time.monotonic() - began, error=said or None)
        supervisor.close()
    if reason != "done":
        return 1
    summary.summarize(run.path, config, time.monotonic() - began)
    console.finish()
    return 0


def _describe(supervisor: Supervisor) -> None:
    supervisor.console.say(_plan_line(supervisor.plan))
    for note in supervisor.plan.notes:
        supervisor.console.say(note)


def _plan_line(placed: Plan) -> str:
    """`1 target and 2 drafters: target-0 on GPU 0, drafter-0 on GPU 1, ...`, or `... on CPU`"""
    counts = f"{len(placed.targets)} target{'s'[: len(placed.targets) != 1]} and "
    counts += f"{len(placed.drafters)} drafter{'s'[: len(placed.drafters) != 1]}"
    if placed.workers[0].gpu is None:
        return f"{counts} on CPU, {placed.threads} thread{'s'[: placed.threads != 1]} each"
    return f"{counts}: " + ", ".join(f"{p.name} on GPU {p.gpu.name}" for p in placed.workers if p.gpu)


def _from_where(run: RunDir, config: Config) -> str:
    """Where a run goes on, and what has to be trained again; empty for one that begins."""
    steps, newest = len(read_lines(run.path / "metrics.jsonl")), summary.newest_checkpoint(run.path)
    if newest is None:
        lost = f"no checkpoint yet: checkpoint.every_steps={config.checkpoint.every_steps}"
        return f" from the beginning, {plural(steps, 'step')} lost ({lost})" if steps else ""
    saved = int(newest.name.removeprefix("step_"))
    lost = f", {plural(steps - saved, 'later step')} lost" if steps > saved else ""
    return f" from the checkpoint of step {saved}{lost}"


def _after(run: RunDir) -> str:
    steps = len(read_lines(run.path / "metrics.jsonl"))
    return f" after {plural(steps, 'step')}" if steps else ""
