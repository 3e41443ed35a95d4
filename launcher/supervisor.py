"""The life of a run: prepare, train, evaluate; starts every process, watches it, starts it again or ends them all."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping

from dfl_mp import blackbox
from dfl_mp.config import Config
from dfl_mp.errors import ConfigError, WorkerFailed
from dfl_mp.log import read_lines
from dfl_mp.messages import (
    Alive,
    Answer,
    Command,
    Died,
    Finished,
    KillWorker,
    Message,
    Progress,
    Shutdown,
    Started,
    is_worker,
)
from dfl_mp.specs import Prepared
from launcher import pulse, stop
from launcher.child import Child
from launcher.commands import Commands
from launcher.console import Console
from launcher.crew import MODULES, Crew
from launcher.plan import Placement, Plan
from launcher.policy import restart_at
from launcher.post import Post
from launcher.run_dir import RunDir
from launcher.signals import Signals
from launcher.stop import Interrupted
from launcher.summary import newest_checkpoint

TURN_S = 0.5
"""Longest wait of one turn of the loop: worker start-up and restarts are looked at this often."""
HURRIED_TURN_S = 0.05
"""The same while the coordinator has not been greeted."""


class Supervisor:
    """One run.

    consumes: deaths of workers (pidfds), messages of the coordinator, signals of the user
    waits for: any of them at one place, `_wait`, never longer than a turn
    unblocked by: every worker's exit, by itself or by the stop ladder; each phase has its deadline
    produces: processes, Alive / Started / Died / Shutdown to the coordinator, events, lines on the console
    """

    def __init__(
        self, run: RunDir, config: Config, plan: Plan, signals: Signals, modules: Mapping[str, str] = MODULES
    ) -> None:
        self.run = run
        self.config = config
        self.plan = plan
        self.console = Console(run.path, config.run.progress_every_s)
        self.crew = Crew(run.path, config.deadline.prepare, modules)
        self._places: dict[str, Placement] = {place.name: place for place in plan.workers}
        self._signals = signals
        self._post = Post(run.path, self._greeting)
        self._post.watch(signals.fd)
        self._deaths: dict[str, list[float]] = {}
        """Times of each worker's deaths since the last committed step."""
        self._fallen_early: list[Child] = []
        """Workers that died while the run was prepared."""
        self._due: dict[str, float] = {}
        """When to start a dead worker again."""
        self._commands = Commands(self.crew, self._places, self._due, self._deaths, config.train.packs_per_step)
        self._step = 0
        self._pulse = pulse.Pulse(time.monotonic())
        self._ending: Shutdown | None = None
        """What a coordinator that has not been greeted yet is told as well."""
        self._verdict: str | None = None
        """What Finished said."""

    # ---- phases --------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Check target and data. Raises ConfigError with what the worker says is wrong, WorkerFailed, Interrupted.

        Targets and drafters load their libraries meanwhile.
        """
        if not self.trained():
            for name in self._places:
                self._start(name)
        done = self._alone("prepare", self.config.deadline.prepare)
        for line in done.log_lines():
            if line.startswith("data: "):
                self.console.say(line)

    def trained(self) -> bool:
        """Whether an earlier launch has committed and saved every step."""
        if not (self.run.path / "prepared.json").exists() or not self._all_committed():
            return False
        saved = newest_checkpoint(self.run.path)
        return saved is not None and int(saved.name.removeprefix("step_")) == self._num_steps()

    def train(self) -> None:
        """Until every step is committed and saved. Raises ConfigError, WorkerFailed, Interrupted; no worker is left."""
        self._start("coordinator")
        self.crew.open_gate()
        try:
            for child in self._fallen_early:
                self._on_death(child)
            while self._verdict is None:
                self._turn()
        except (Interrupted, ConfigError, WorkerFailed) as error:
            self._shut_down(str(error) or "interrupted")
            raise
        self._end_starters()
        stop.climb(self.crew, stop.by_themselves(self.config.deadline.stop), self._stopping_turn)
        if self._verdict:
            raise WorkerFailed(self._verdict)

    def evaluate(self) -> None:
        """Export, and measure acceptance by real decoding. Raises ConfigError, WorkerFailed, Interrupted."""
        self._alone("evaluator", self.config.deadline.evaluate)

    def close(self) -> None:
        """Whatever happened: no process is left."""
        stop.climb(self.crew, stop.KILL, lambda within: self._bury(within, heed_signals=False))
        for child in self.crew.alive.values():
            self.console.say(f"{child.name} (process {child.process.pid}) does not end; the kernel holds it")
        self._post.close()
        self.crew.close()

    # ---- one process in the foreground -----------------------------------------------------------------------------

    def _alone(self, name: str, within: float) -> Child:
        """Whoever kills it from outside gets it again, as often as a worker of the training."""
        for _ in range(self.config.cluster.restarts_per_worker):
            child = self._once(name, within)
            if child.code in (0, 2) or child.own_doing:
                break
            self.console.notice(f"{name}: {child.how_it_ended()}; starts again (see {child.log})")
        else:
            child = self._once(name, within)
        if child.code == 2:
            raise ConfigError(_complaint(child))
        if child.code != 0:
            raise WorkerFailed(_report([child]))
        return child

    def _once(self, name: str, within: float) -> Child:
        child = self._start(name)
        while name in self.crew.alive:
            self._fallen_early += [dead for dead in self._bury(TURN_S) if dead is not child]
            self.console.waiting(child)
            if child.age > within:
                self._kill_stuck(child, f"not done after {within:.0f} s")
        return child

    # ---- the loop of training ----------------------------------------------------------------------------------------

    def _turn(self) -> None:
        if self._post.broken:
            self._post.anew()
        greeted = self._post.greet()
        messages = self._wait(TURN_S if greeted else HURRIED_TURN_S)
        for message in messages:
            self._on_message(message)
        for what in self._signals.orders():
            self.console.notice(f"{what}: {self._commands.of_coordinator(what)}")
        for child in self._bury(0):
            self._on_death(child)
        self._watch_coordinator(heard=bool(messages))
        self._commands.press()
        self._start_due()
        self._look_at_starts()
        self._show()

    def _show(self, stopping: bool = False) -> None:
        self.console.tick([child for child in self.crew.alive.values() if is_worker(child.id)], stopping)

    def _on_message(self, message: Message) -> None:
        match message:
            case Progress():
                self.console.progress(message)
                if message.step > self._step:
                    self._step = message.step
                    self._deaths.clear()
            case KillWorker():
                for child in self.crew.alive.values():
                    if child.id == message.worker:
                        self._kill_stuck(child, message.reason)
            case Command():
                self._obey(message)
            case Finished():
                self._verdict = message.error

    def _obey(self, command: Command) -> None:
        if self._ending is not None or self._verdict is not None:
            answer = Answer(operator=command.operator, code=1, text="the run is ending")
        else:
            answer = self._commands.obey(command)
        if answer.code == 0:
            self.console.notice(f"{command.what}: {answer.text}")
        self._post.tell(answer)

    def _on_death(self, child: Child) -> None:
        if child.name == "coordinator":
            if self._verdict is not None or (child.code == 0 and self._all_committed()):
                self._verdict = self._verdict or ""
                return
            self._post.anew()
        else:
            ready, pack = blackbox.read(self.run.path, child.id)
            failed = not ready and child.own_doing and not child.stuck and self.crew.first_incarnation(child)
            if failed and self._commands.gives_up(child):
                self.console.notice(f"{child.name} failed to start; the run goes on without it (see {child.log})")
            elif failed:
                if child.code == 2:
                    raise ConfigError(_complaint(child))
                raise WorkerFailed(f"{child.name} failed to start\n{_report([child])}")
            child.suspect = pack if child.own_doing else None
            self._post.tell(_died(child))
        if self._verdict is None:
            self._plan_restart(child)

    def _plan_restart(self, child: Child) -> None:
        if self._commands.settles(child):
            return
        now = time.monotonic()
        deaths = self._deaths.setdefault(child.name, [])
        deaths.append(now)
        at = restart_at(deaths, self.config.cluster.restarts_per_worker)
        if at is None:
            newest = {fallen.name: fallen for fallen in self.crew.fallen if fallen.name in self._deaths}
            raise WorkerFailed(
                f"{child.name} died {len(deaths)} times without a step in between\n{_report(newest.values())}"
            )
        self._due[child.name] = at
        pause = f" in {at - now:.1f} s" if at > now else ""
        self.console.notice(f"{child.name}: {child.how_it_ended()}; starts again{pause} (see {child.log})")

    def _start_due(self) -> None:
        for name in [name for name, at in self._due.items() if at <= time.monotonic()]:
            del self._due[name]
            child = self._start(name)
            if is_worker(child.id):
                self._post.tell(Started(worker=child.id))

    def _look_at_starts(self) -> None:
        """Note who has become ready; a start that lasts too long counts as stuck."""
        for child in self.crew.alive.values():
            if child.ready or not is_worker(child.id):
                continue
            child.ready = blackbox.read(self.run.path, child.id)[0]
            if child.ready:
                self.crew.note("worker_ready", child, **blackbox.start_of(self.run.path, child.id))
            elif child.age > self.config.deadline.start:
                self._kill_stuck(child, f"not ready after {child.age:.0f} s")

    def _watch_coordinator(self, heard: bool) -> None:
        silence = self._pulse.silence(time.monotonic(), heard)
        child = self.crew.alive.get("coordinator")
        if child is not None and min(silence, child.age) > pulse.SILENT_AFTER_S:
            self._kill_stuck(child, f"silent for {silence:.0f} s")

    def _kill_stuck(self, child: Child, reason: str) -> None:
        if not child.stuck:
            child.stuck = reason
            child.signal_group(signal.SIGKILL)

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _shut_down(self, reason: str) -> None:
        """Ask the coordinator to save and stop; who has nothing to save, or does not stop in time, is made to."""
        try:
            self.console.notice("stopping ...")
            self._ending = Shutdown(reason=reason[:4096])
            self._post.tell(self._ending)
            began = time.monotonic()
            until = began + self.config.deadline.stop
            self._end_starters()
            while self._verdict is None and "coordinator" in self.crew.alive and time.monotonic() < until:
                self._stopping_turn(min(TURN_S, until - time.monotonic()))
                if self.console.saving:
                    until = min(time.monotonic() + self.config.deadline.stop, began + self.config.deadline.save)
            asked = self._verdict is not None
            ladder = stop.by_themselves(self.config.deadline.stop) if asked else stop.TERM
            stop.climb(self.crew, ladder, self._stopping_turn)
        except Interrupted:
            stop.climb(self.crew, stop.KILL, lambda within: self._bury(within, heed_signals=False))
        self._show(stopping=True)

    def _end_starters(self) -> None:
        """Workers that are still starting have nothing to save, and may be deaf until they are ready."""
        self._look_at_starts()  # one that has become ready since the last turn may have a state
        for child in self.crew.alive.values():
            if is_worker(child.id) and not child.ready:
                child.signal_group(signal.SIGTERM)

    def _stopping_turn(self, within: float) -> None:
        within = within if self._post.greet() else min(within, HURRIED_TURN_S)
        self._show(stopping=self._ending is not None)
        for message in self._wait(within):
            self._on_message(message)
        for child in self._bury(0):
            if is_worker(child.id):
                self._post.tell(_died(child))

    # ---- what all of it stands on --------------------------------------------------------------------------------

    def _wait(self, within: float, heed_signals: bool = True) -> list[Message]:
        messages = self._post.collect(within)
        if self._signals.taken() and heed_signals:
            raise Interrupted
        return messages

    def _bury(self, within: float, heed_signals: bool = True) -> list[Child]:
        if within > 0:
            self._wait(within, heed_signals)
        dead = self.crew.bury()
        for child in dead:
            self._post.unwatch(child.pidfd)
        return dead

    def _start(self, name: str) -> Child:
        place = self._places.get(name)
        if name == "evaluator" and self.plan.targets:
            place = self.plan.targets[0]
        child = self.crew.start(name, place, self.plan.threads)
        self._post.watch(child.pidfd)
        return child

    def _greeting(self) -> list[Message]:
        """Who lives, and who has died under the eyes of a coordinator that may not have heard of it."""
        alive = tuple(child.id for child in self.crew.alive.values() if is_worker(child.id))
        fallen = [child for child in self.crew.fallen if is_worker(child.id)]
        ending = [self._ending] if self._ending else []
        return [Alive(workers=alive), *(_died(child) for child in fallen), *ending]

    def _all_committed(self) -> bool:
        return len(read_lines(self.run.path / "metrics.jsonl")) >= self._num_steps()

    def _num_steps(self) -> int:
        return Prepared.read(self.run.path / "prepared.json").num_steps


def _died(child: Child) -> Died:
    return Died(worker=child.id, suspect=child.suspect)


def _report(children: Iterable[Child]) -> str:
    """The last words of dead workers, with where to read more."""
    parts = []
    for child in children:
        words = child.last_words()
        said = f"the end of {child.log}:\n{words}" if words else f"{child.log} is empty"
        parts.append(f"{child.name}: {child.how_it_ended()}; {said}")
    return "\n\n".join(parts)


def _complaint(child: Child) -> str:
    """What a worker that exited with 2 says is wrong."""
    lines = [line for line in child.log_lines() if line.startswith("error: ")]
    return lines[-1].removeprefix("error: ") if lines else f"{child.name} refused the input; see {child.log}"
