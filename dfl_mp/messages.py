"""Every record that travels, in one file: who sends it to whom, and what it entitles the receiver to.

A leaf: no torch, no socket. On the wire a message is msgpack of `{"t": class name, **fields}`; `decode` checks every
field and refuses what it does not know, so nothing behind it has to.

A worker id names one incarnation: `drafter-1.3` is the third process that has been `drafter-1`. A pack is named by its
number; its step is `number // G`. A lease number names one assignment of a pack to a drafter.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

import msgpack  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dfl_mp.errors import RefusedMessage

MAX_BYTES = 4 * 1024 * 1024
COORDINATOR = "coordinator"
LAUNCHER = "launcher"

Natural = Annotated[int, Field(ge=0, lt=2**63)]
Worker = Annotated[str, Field(pattern=r"^(target|drafter)-\d{1,4}\.\d{1,9}$")]
Operator = Annotated[str, Field(pattern=r"^ctl-\d{1,10}$")]
"""One command of a person: `ctl-` and its process id."""
Text = Annotated[str, Field(max_length=64 * 1024)]
Workers = Annotated[tuple[Worker, ...], Field(max_length=1024)]
Packs = Annotated[tuple[Natural, ...], Field(max_length=65536)]
Pairs = Annotated[tuple[tuple[Natural, Natural], ...], Field(max_length=65536)]


def role_of(worker: str) -> str:
    """`role_of("drafter-1.3") == "drafter"`."""
    return worker.split("-", 1)[0]


def name_of(worker: str) -> str:
    """`name_of("drafter-1.3") == "drafter-1"`."""
    return worker.rsplit(".", 1)[0]


def incarnation_of(worker: str) -> int:
    """`incarnation_of("drafter-1.3") == 3`."""
    return int(worker.rsplit(".", 1)[1])


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class SlotRef(Record):
    """One filling of one slot: `target` (an incarnation, so also the ring's epoch), its slot, its sequence number."""

    target: Worker
    slot: Natural
    seq: Natural


class RingHandle(Record):
    """How to map a target's ring. `shm`: the owner's open file, under /proc. `cuda`: the tuple of
    `UntypedStorage._share_cuda_()`."""

    kind: Literal["shm", "cuda"]
    path: Annotated[str, Field(max_length=255)] = ""
    cuda: tuple[Any, ...] = ()
    num_slots: Annotated[int, Field(gt=0, le=4096)]
    shape: tuple[Natural, Natural, Natural]
    """rows, tokens, F·H of one slot."""
    dtype: Literal["float32", "bfloat16", "float64"]
    checksum: Natural
    """Of the pattern behind the last slot: a reader that finds another has mapped something else."""


class HeldPack(Record):
    """A pack in a drafter's hands that is not in its gradient yet."""

    pack: Natural
    state: Literal["assigned", "copied"]
    ref: SlotRef
    lease: Natural


class Statistics(Record):
    """What one committed step measured, over all its packs and workers."""

    loss: float
    lr: float
    grad_norm: float
    tokens: float
    trained_tokens: float
    accept_len_est: float
    data_wait_s: float
    skipped: bool


class Status(Record):
    """What a worker says of itself for people and for the stuck-worker rule."""

    state: Literal["starting", "compiling", "working", "idle", "reducing", "joining", "saving"]
    since_s: float
    """How long it has been in this state without progress."""
    step: Natural
    busy_s: float
    wait_s: float
    packs: Natural
    """Computed since this process started; `busy_s` and `wait_s` likewise."""
    note: Annotated[str, Field(max_length=200)] = ""
    """What the state does not say: `waits for drafter-0 to compile`."""


class Message(Record):
    """Base of everything that `encode` takes."""

    kinds: ClassVar[dict[str, type[Message]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        Message.kinds[cls.__name__] = cls


# ---- worker -> coordinator: first word on a link -----------------------------------------------------------------


class TargetHello(Message):
    """target -> coordinator: this link is new. `slots[i]` is (pack, seq) of a full slot or None; `busy` are (pack,
    slot) of queued or running computes."""

    ring: RingHandle
    slots: Annotated[tuple[tuple[Natural, Natural] | None, ...], Field(max_length=4096)]
    busy: Pairs


class DrafterHello(Message):
    """drafter -> coordinator: this link is new; one consistent snapshot. `applied` is the number of steps in its
    weights (None: it has no state that counts), `last` and `statistics` belong to the newest of them; `reduced` is
    (step, generation) of a reduced buffer that it holds; `trained` are the packs in its own gradient; `epochs` are
    the targets whose ring it has mapped; `warm`: its step is compiled, so that it may join."""

    warm: bool
    applied: Natural | None
    last: Packs
    statistics: Statistics | None
    generation: Natural
    reduced: tuple[Natural, Natural] | None
    trained: Packs
    held: Annotated[tuple[HeldPack, ...], Field(max_length=4096)]
    epochs: Workers


# ---- worker -> coordinator ---------------------------------------------------------------------------------------


class FeaturesReady(Message):
    """target -> coordinator: the slot holds the pack's features; it may be assigned."""

    pack: Natural
    slot: Natural
    seq: Natural


class Warm(Message):
    """drafter -> coordinator: the step is compiled; it may join at a step boundary."""


class Copied(Message):
    """drafter -> coordinator: the slot was copied; it may be leased again."""

    pack: Natural
    lease: Natural


class Trained(Message):
    """drafter -> coordinator: the pack's backward is enqueued; it counts in the drafter's next reduce."""

    pack: Natural
    lease: Natural


class Released(Message):
    """drafter -> coordinator: the pack is not held any more and not in the gradient; it may be leased again."""

    pack: Natural
    lease: Natural


class EpochDropped(Message):
    """drafter -> coordinator: no view of the dead target's ring is left; `released` are (pack, lease) given up with
    it."""

    target: Worker
    released: Pairs


class RingProved(Message):
    """drafter -> coordinator: mapped the ring, found its pattern, and copied at this rate."""

    target: Worker
    kind: Literal["shm", "cuda"]
    bytes_per_s: float


TRANSPORT = "transport.json"
"""In the run folder once CUDA IPC has proved unusable: rings are in shared memory until the next launch."""


class RingUnreadable(Message):
    """drafter -> coordinator: the target's ring cannot be mapped here though the target is not known to be dead."""

    target: Worker
    reason: Text


class Recompiled(Message):
    """drafter -> coordinator: graphs were compiled after the warm-up, so a shape or a flag is not constant. `reason`
    names the guards that failed, `seconds` is what it took."""

    graphs: Natural
    reason: Text = ""
    seconds: float = 0.0


class Formed(Message):
    """drafter -> coordinator: in the generation, with the state of `applied` steps."""

    generation: Natural
    applied: Natural


class Reduced(Message):
    """drafter -> coordinator: holds the reduced buffer of the step; nothing is applied yet."""

    step: Natural
    generation: Natural


class Applied(Message):
    """drafter -> coordinator: the step is in the weights. The first one writes ledger and metrics."""

    step: Natural
    packs: Packs
    statistics: Statistics


class Saved(Message):
    """drafter -> coordinator: the checkpoint of `steps` steps lies complete in `folder`; it may be published."""

    steps: Natural
    folder: Annotated[str, Field(max_length=4096)]


class Heartbeat(Message):
    """worker -> coordinator: alive, and what it is doing."""

    status: Status


# ---- coordinator -> target ---------------------------------------------------------------------------------------


class Compute(Message):
    """coordinator -> target: fill this free slot with the pack's features."""

    pack: Natural
    slot: Natural


# ---- coordinator -> drafter --------------------------------------------------------------------------------------


class Train(Message):
    """coordinator -> drafter: the pack is yours under this lease; copy it from the slot, then train on it."""

    pack: Natural
    ref: SlotRef
    lease: Natural
    ring: RingHandle


class Revoke(Message):
    """coordinator -> drafter: give the pack back if its computation has not begun (a begun copy is finished first)."""

    pack: Natural
    lease: Natural


class EpochClosed(Message):
    """coordinator -> drafter: the target is dead; finish copies, drop every view of its ring, answer EpochDropped."""

    target: Worker


class Form(Message):
    """coordinator -> drafter: build the generation. Discards a reduced buffer and a pending Reduce. `receivers` get the
    state from `source` by broadcast; with `load` all members load that checkpoint (0: initial weights) instead."""

    generation: Natural
    members: Workers
    source: Worker | None
    receivers: Workers
    load: Natural | None


class Admitted(Message):
    """coordinator -> drafter: the generation stands; a joiner's state counts from now on."""

    generation: Natural


class Reduce(Message):
    """coordinator -> drafter: all packs of the step are trained; all-reduce the gradient out of place."""

    step: Natural
    generation: Natural


class Commit(Message):
    """coordinator -> drafter: every member holds the reduced buffer; apply it. `packs` are those that it counts."""

    step: Natural
    packs: Packs


class Save(Message):
    """coordinator -> drafter: the ledger holds `steps` lines; write that checkpoint into a private folder."""

    steps: Natural


class Stop(Message):
    """coordinator -> worker: the run is over; exit 0."""


# ---- launcher <-> coordinator ------------------------------------------------------------------------------------


class Alive(Message):
    """launcher -> coordinator: these workers live; no pack is assigned before each has said Hello or is reaped."""

    workers: Workers


class Started(Message):
    """launcher -> coordinator: the worker's process exists; its Hello counts from now on."""

    worker: Worker


class Died(Message):
    """launcher -> coordinator: the worker is reaped and cannot write any more. `suspect` is the pack that it was
    computing when it crashed by itself or was killed as stuck; None after a signal from outside."""

    worker: Worker
    suspect: Natural | None


class Shutdown(Message):
    """launcher -> coordinator: end the run now; `checkpoint` first if a drafter lives."""

    reason: Text


class WorkerLine(Record):
    """One worker in a Progress."""

    worker: Worker
    status: Status | None


class Progress(Message):
    """coordinator -> launcher, operator: for people. Rates are over the last seconds; `eta_s` is None before a rate is
    known.

    `loss` and `accept_len_est` are means over the last `metrics.SMOOTH_STEPS` steps: single packs are noisy."""

    step: Natural
    num_steps: Natural
    loss: float | None
    accept_len_est: float | None
    tokens_per_s: float
    eta_s: float | None
    ready_slots: Natural
    num_slots: Natural
    computing_packs: Natural = 0
    """Leased by targets."""
    held_packs: Natural = 0
    """With drafters, not in a gradient yet."""
    drafter_busy: float | None = None
    """Share of the time since the first step that this coordinator saw committed in which drafters were at work, until
    the last one; `target_busy` likewise."""
    target_busy: float | None = None
    generation: Natural
    workers: Annotated[tuple[WorkerLine, ...], Field(max_length=1024)]


class KillWorker(Message):
    """coordinator -> launcher: the worker is past its deadline; kill its process group."""

    worker: Worker
    reason: Text


class Finished(Message):
    """coordinator -> launcher: the run is over. `error` is empty when every step is committed and the checkpoint is
    on disk."""

    error: Text


# ---- operator <-> coordinator <-> launcher -----------------------------------------------------------------------


class Command(Message):
    """operator -> coordinator: answer `status` with a Progress, `checkpoint` and what is refused with an Answer.
    coordinator -> launcher: the rest concerns processes; answer it. `worker` is a name, `drafter-1`,
    or an id, or empty."""

    what: Literal["status", "checkpoint", "kill", "restart", "remove", "add-drafter"]
    worker: Annotated[str, Field(max_length=64)] = ""
    operator: Operator


class Answer(Message):
    """launcher -> coordinator -> operator: what has happened. `code` is the command's exit code; more follows while
    it is None."""

    operator: Operator
    code: Annotated[int, Field(ge=0, le=2)] | None
    text: Text


def encode(message: Message) -> bytes:
    """Bytes for the wire."""
    return msgpack.packb({"t": type(message).__name__, **message.model_dump()}, use_bin_type=True)  # type: ignore[no-any-return]


def decode(data: bytes) -> Message:
    """The message in `data`.

    Raises RefusedMessage when it is too large, not msgpack, of unknown kind, or a field is missing, unknown or wrong.
    """
    if len(data) > MAX_BYTES:
        raise RefusedMessage(f"message of {len(data)} bytes; at most {MAX_BYTES} are read")
    try:
        body = msgpack.unpackb(data, use_list=False, raw=False)
    except Exception as error:
        raise RefusedMessage(f"not msgpack: {type(error).__name__}") from None
    if not isinstance(body, dict) or not isinstance(body.get("t"), str):
        raise RefusedMessage("not a message: no kind")
    kind = Message.kinds.get(body.pop("t"))
    if kind is None:
        raise RefusedMessage("unknown kind of message")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise RefusedMessage(f"{kind.__name__}.{field}: {first['msg']}") from None


def is_worker(text: str) -> bool:
    """Whether `text` is a well-formed worker id."""
    return re.fullmatch(r"(target|drafter)-\d{1,4}\.\d{1,9}", text) is not None


def is_operator(text: str) -> bool:
    """Whether `text` is a well-formed id of an operator's command."""
    return re.fullmatch(r"ctl-\d{1,10}", text) is not None
