"""The coordinator: the one process that knows where every pack is. Never touches a tensor.

    python -m dfl_mp.roles.coordinator RUN_DIR

consumes: messages of workers, launcher and operators
waits for: the next one, at most until the next progress report
unblocked by: any message
produces: what the state machine orders, carried out in order; ledger, events, checkpoints' names; Progress; Finished
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import deque
from typing import Any

from dfl_mp import blackbox
from dfl_mp.errors import RefusedMessage
from dfl_mp.log import JsonLines, read_lines, say, write_json
from dfl_mp.messages import (
    COORDINATOR,
    LAUNCHER,
    TRANSPORT,
    Alive,
    Answer,
    Command,
    Died,
    Finished,
    Heartbeat,
    KillWorker,
    Message,
    Progress,
    Recompiled,
    RingProved,
    RingUnreadable,
    Save,
    Shutdown,
    Started,
    Status,
    Stop,
    WorkerLine,
    is_operator,
    role_of,
)
from dfl_mp.metrics import SMOOTH_STEPS, Busy, mean_of
from dfl_mp.pace import Pace
from dfl_mp.protocol.coordinator import Coordinator
from dfl_mp.protocol.effects import (
    AppendLedger,
    CutLedger,
    Effect,
    Note,
    PersistAside,
    PersistGeneration,
    Publish,
    Restart,
    Send,
)
from dfl_mp.protocol.scheduler import Shape
from dfl_mp.roles.common import Job, begin
from dfl_mp.roles.deadlines import Deadlines, Order
from dfl_mp.roles.hearing import Hearing
from dfl_mp.roles.ledger import Ledger
from dfl_mp.roles.operators import Operators
from dfl_mp.roles.refusals import Refusals
from dfl_mp.roles.unreadable import Complaint, Unreadable
from dfl_mp.transport.links import Hub

PROGRESS_EVERY_S = 0.5
SILENT_AFTER_S = 60.0
"""A worker whose control thread says nothing for so long is stopped or stuck as a whole."""
RESTART_CODE = 75


class CoordinatorRole:
    """See the module."""

    def __init__(self, job: Job) -> None:
        self.job, c = job, job.config
        self.ledger = Ledger(job.run_dir, c.checkpoint.keep)
        self.events = JsonLines(job.run_dir / "events.jsonl")
        shape = Shape(c.train.packs_per_step, job.prepared.num_steps, c.checkpoint.every_steps)
        self.machine = Coordinator(shape, self.ledger.load())
        self.hub = Hub(job.run_dir)
        self.operators = Operators(job.run_dir, self.machine, self.hub.send)
        self.refusals = Refusals()
        self.hearing = Hearing(time.monotonic())
        self.status: dict[str, Status] = {}
        self.deadlines = Deadlines(c.deadline)
        self.killing: set[str] = set()
        self.unreadable = Unreadable()
        newest = read_lines(job.run_dir / "metrics.jsonl")[-SMOOTH_STEPS:]
        self.recent: deque[dict[str, Any]] = deque(newest, maxlen=SMOOTH_STEPS)
        """The newest lines of the ledger, for the means that people read."""
        self.pace, self.busy = Pace(), Busy()
        self.skipped_in_a_row = 0
        self.shutdown: Shutdown | None = None
        self.error = ""

    def run(self) -> int:
        next_report = 0.0
        while not self._over():
            self._receive(within=max(0.0, min(PROGRESS_EVERY_S, next_report - time.monotonic())))
            if time.monotonic() >= next_report:
                next_report = time.monotonic() + PROGRESS_EVERY_S
                self._watch_deadlines()
                self._carry_out(self.operators.watch(time.monotonic()))
                self._refused(self.refusals.due(time.monotonic()))
                self.hub.send(LAUNCHER, self._progress())
        self._end()
        return 0

    # ---- messages ---------------------------------------------------------------------------------------------------

    def _receive(self, within: float) -> None:
        try:
            received = self.hub.receive(within)
        except RefusedMessage as error:
            self._refuse(str(error))
            return
        if received is None:
            return
        sender, message = received
        if is_operator(sender):
            self._on_operator(sender, message)
        elif self.machine.is_past(sender):
            self.hub.send(sender, Stop())
        elif not self.machine.may_speak(sender, message):
            self._refuse(f"{type(message).__name__} from {sender}")
        else:
            if sender != LAUNCHER:
                self.hearing.heard(sender, time.monotonic())
            self._take(sender, message)

    def _take(self, sender: str, message: Message) -> None:
        """One message of a worker or the launcher."""
        if isinstance(message, Heartbeat):
            self.status[sender] = message.status
            self.busy.heard(sender, message.status.busy_s, time.monotonic())
        elif isinstance(message, RingProved):
            fields = {"drafter": sender, "target": message.target, "kind": message.kind}
            self._event("transport_proved", **fields, gb_per_s=message.bytes_per_s / 1e9)
        elif isinstance(message, Recompiled):
            fields = {"graphs": message.graphs, "reason": message.reason, "seconds": round(message.seconds, 2)}
            self._event("recompile", drafter=sender, **fields)
        elif isinstance(message, RingUnreadable):
            self.unreadable.take(message.target, sender, message.reason, time.monotonic())
        elif isinstance(message, Shutdown) and sender == LAUNCHER:
            self.shutdown = message
            self._carry_out(self.machine.save_now())
        elif isinstance(message, Answer) and sender == LAUNCHER:
            self.hub.send(message.operator, message)
        else:
            self._note_lives(message)
            self._carry_out(self.machine.handle(sender, message))

    def _note_lives(self, message: Message) -> None:
        match message:
            case Died():
                self.status.pop(message.worker, None)
                self.hearing.gone(message.worker)
            case Started():
                self.hearing.listed(message.worker, time.monotonic())
            case Alive():
                self.ledger.sweep(message.workers)
                for worker in message.workers:
                    self.hearing.listed(worker, time.monotonic())

    def _on_operator(self, operator: str, message: Message) -> None:
        if not isinstance(message, Command) or message.operator != operator:
            self._refuse(f"{type(message).__name__} from {operator}")
        elif message.what == "status":
            self.hub.send(operator, self._progress())
        else:
            self._carry_out(self.operators.take(message, time.monotonic()))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect.to, effect.message)
                case PersistGeneration() | PersistAside():
                    self.ledger.persist(self.machine.group.generation, self.machine.packs.aside)
                case AppendLedger():
                    self.recent.append(self.ledger.append(effect))
                    self._count_skipped(effect)
                    self._follow_rate(self.recent[-1])
                case CutLedger():
                    self.ledger.cut(effect.steps)
                    self.recent.clear()
                case Publish():
                    folder = self.ledger.publish(effect.steps, effect.folder)
                    self._event("checkpoint_saved", steps=effect.steps, folder=str(folder))
                    self.operators.published(effect.steps)
                case Note():
                    self._event(effect.event, **effect.fields)
                case Restart():
                    self._event("coordinator_restart", reason=effect.reason)
                    say(f"restarting: {effect.reason}")
                    sys.exit(RESTART_CODE)

    def _send(self, to: str, message: Message) -> None:
        if isinstance(message, Save):
            self.ledger.sync()
        self.hub.send(to, message)

    def _count_skipped(self, effect: AppendLedger) -> None:
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if effect.statistics.skipped else 0
        if effect.statistics.skipped:
            self._event("step_skipped", step=effect.step, packs=list(effect.packs))
        most = self.job.config.train.max_skipped_in_a_row
        if self.skipped_in_a_row >= most:
            self.error = f"{most} steps in a row had no finite loss and gradient; the last is step {effect.step}"

    def _refuse(self, reason: str) -> None:
        self._refused(self.refusals.take(reason, time.monotonic()))

    def _refused(self, line: dict[str, Any] | None) -> None:
        if line is not None:
            self._event("refused_message", **line)

    def _follow_rate(self, line: dict[str, Any]) -> None:
        self.busy.committed(last=line["step"] + 1 >= self.machine.shape.num_steps)
        drop = self.pace.step(line["step_s"], line["data_wait_s"], line["drafters"])
        if drop is not None:
            self._event("rate_dropped", step=line["step"], **dataclasses.asdict(drop))

    def _event(self, event: str, **fields: object) -> None:
        self.events.append({"time": time.time(), "event": event, "worker": COORDINATOR, **fields})

    # ---- deadlines --------------------------------------------------------------------------------------------------

    def _watch_deadlines(self) -> None:
        now = time.monotonic()
        for worker, silence in self.hearing.silences(now).items():
            if silence > SILENT_AFTER_S and self._should_speak(worker):
                self._kill(worker, f"says nothing for {silence:.0f} s")
        for worker, reason in self.deadlines.stuck(self.status).items():
            self._kill(worker, reason)
        for complaint in self.unreadable.due(now, dying=self.machine.dead | self.killing):
            self._fall_back(complaint)
        if (late := self.deadlines.late(self._open_order(), now)) is not None:
            self._event("order_late", order=str(late))
            for worker, reason in self.deadlines.absent(late, self.status).items():
                self._kill(worker, reason)
            self._carry_out(self.machine.form_again())

    def _should_speak(self, worker: str) -> bool:
        """While it loads, a worker may be silent; the launcher has a deadline for that."""
        return worker in self.machine.listed and (
            worker in self.status or worker in self.machine.hellos or blackbox.read(self.job.run_dir, worker)[0]
        )

    def _open_order(self) -> Order | None:
        """The generation that is being formed, or the open reduce."""
        m = self.machine
        if m.group.forming is not None:
            return Order("form", m.group.generation, m.step, m.group.forming.order.members)
        if m.reducing is not None:
            return Order("reduce", m.group.generation, m.step, tuple(sorted(m.group.members)))
        return None

    def _kill(self, worker: str, reason: str) -> None:
        if worker not in self.killing and self.hub.send(LAUNCHER, KillWorker(worker=worker, reason=reason)):
            self.killing.add(worker)
            self._event("worker_stuck", stuck=worker, reason=reason)

    def _fall_back(self, complaint: Complaint) -> None:
        """A living target's ring cannot be mapped: the target starts again, from the second on with a ring in shared
        memory."""
        fields = {"drafter": complaint.drafter, "target": complaint.target, "reason": complaint.reason}
        if complaint.proved:
            self._event("transport_fallback", **fields)
            write_json(self.job.run_dir / TRANSPORT, {"kind": "shm", "reason": complaint.reason})
        self._kill(complaint.target, f"its ring cannot be read by {complaint.drafter}: {complaint.reason}")

    # ---- people -----------------------------------------------------------------------------------------------------

    def _progress(self) -> Progress:
        m, now = self.machine, time.monotonic()
        rate = self.ledger.rates.steps_per_s(now)
        left = m.shape.num_steps - m.ledger
        alive = sorted(m.listed - m.dead)
        return Progress(
            step=m.ledger,
            num_steps=m.shape.num_steps,
            loss=mean_of(self.recent, "loss"),
            accept_len_est=mean_of(self.recent, "accept_len_est"),
            tokens_per_s=self.ledger.rates.tokens_per_s(now),
            eta_s=left / rate if rate > 0 else None,
            ready_slots=len(m.packs.within("ready")),
            num_slots=len(m.slots),
            computing_packs=len(m.packs.within("leased")),
            held_packs=len(m.packs.within("held")),
            drafter_busy=self.busy.share("drafter"),
            target_busy=self.busy.share("target"),
            generation=m.group.generation,
            workers=tuple(WorkerLine(worker=w, status=self.status.get(w)) for w in alive),
        )

    # ---- end --------------------------------------------------------------------------------------------------------

    def _over(self) -> bool:
        if self.shutdown is not None:
            return self.machine.saving is None
        return bool(self.error) or self.machine.finished

    def _end(self) -> None:
        if self.shutdown is not None and not self.machine.finished:
            self.error = f"stopped: {self.shutdown.reason}"
        for worker in sorted(self.machine.hellos):
            if worker not in self.machine.dead and role_of(worker) in ("target", "drafter"):
                self.hub.send(worker, Stop())
        self.operators.close()
        self._refused(self.refusals.flush())
        self.hub.send(LAUNCHER, self._progress())
        self.hub.send(LAUNCHER, Finished(error=self.error))
        time.sleep(0.2)  # LINGER is 0: let the last messages leave
        self.hub.close()


def main() -> int:
    return CoordinatorRole(begin(sys.argv)).run()


if __name__ == "__main__":
    sys.exit(main())
