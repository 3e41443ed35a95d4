"""Links: a star of ZeroMQ sockets on `ipc://`, one ROUTER in the coordinator, one DEALER per worker, one for the
launcher, and one for each command of an operator.

Knows nothing of training; carries messages of `dfl_mp.messages`. Delivery on one link is in order; a link that broke is
never mended but replaced (`Link.reopen`), and the first word on the new one says where its owner stands. Every wait
has a deadline. Nothing listens on the network.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from dfl_mp.errors import RefusedMessage, TransportError
from dfl_mp.messages import LAUNCHER, MAX_BYTES, Message, decode, encode, is_operator, is_worker

SOCKET_PATH_MAX = 100
"""Bytes; the kernel takes 107 with the terminating zero, ZeroMQ wants some."""
QUEUE = 4096
HEARTBEAT_MS = 1000
HEARTBEAT_TIMEOUT_MS = 30_000


def private_dir(path: Path) -> Path:
    """Make `path` a folder of this user alone (0700) and return it.

    Raises TransportError if it belongs to somebody else or others may enter it.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.stat()
    if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
        raise TransportError(f"{path} is not private to this user")
    return path


def socket_path(run_dir: Path) -> Path:
    """Where the run's socket lies: in the run folder, or under the temporary folder when that path is too long."""
    inside = run_dir.resolve() / ".sock" / "bus"
    if len(os.fsencode(inside)) <= SOCKET_PATH_MAX:
        return inside
    key = hashlib.sha256(os.fsencode(run_dir.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"dfl-mp-{os.getuid()}-{key}" / "bus"


def _options(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, QUEUE)
    socket.setsockopt(zmq.RCVHWM, QUEUE)
    socket.setsockopt(zmq.MAXMSGSIZE, 2 * MAX_BYTES)  # beyond, the link is cut without a word; `decode` names the rest
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)


class Hub:
    """The coordinator's end. Senders are worker ids, operators or `launcher`; anything else is refused."""

    def __init__(self, run_dir: Path) -> None:
        """Raises TransportError if another coordinator of this run lives: a second bind would silently steal the
        path."""
        path = socket_path(run_dir)
        private_dir(path.parent)
        self._lock = (path.parent / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TransportError(f"another coordinator holds {path}") from None
        path.unlink(missing_ok=True)
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        _options(self._socket)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.bind(f"ipc://{path}")
        self._path = path

    def receive(self, within: float) -> tuple[str, Message] | None:
        """The next message and its sender, or None after `within` seconds.

        Raises RefusedMessage for one that cannot be read; the link stays usable.
        """
        if not self._socket.poll(int(within * 1000)):
            return None
        frames = self._socket.recv_multipart()
        if len(frames) != 2:
            raise RefusedMessage(f"{len(frames)} frames; 2 are expected")
        sender = frames[0].decode("ascii", errors="replace")
        if sender != LAUNCHER and not is_worker(sender) and not is_operator(sender):
            raise RefusedMessage(f"sender {sender[:64]!r} is not a worker id")
        try:
            return sender, decode(frames[1])
        except RefusedMessage as error:
            raise RefusedMessage(f"from {sender}: {error}") from None

    def send(self, to: str, message: Message) -> bool:
        """Queue a message. False when the receiver is not connected: its death or its next Hello will tell."""
        try:
            self._socket.send_multipart([to.encode("ascii"), encode(message)], flags=zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise TransportError(f"queue to {to} is full") from None
        return True

    def close(self) -> None:
        self._socket.close()
        self._context.term()
        self._path.unlink(missing_ok=True)
        self._lock.close()


class Link:
    """A worker's end. One owner thread loops over `receive`; only `wake` may be called by others."""

    def __init__(self, run_dir: Path, identity: str) -> None:
        self._endpoint = f"ipc://{socket_path(run_dir)}"
        self._identity = identity
        self._context = zmq.Context(io_threads=1)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._open()

    def _open(self) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        _options(self._socket)
        self._socket.setsockopt(zmq.IDENTITY, self._identity.encode("ascii"))
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(self._endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._poller.register(self._wake_read, zmq.POLLIN)
        self.broken = False

    def reopen(self) -> None:
        """Close the broken link with all that was queued on it, and begin a new one: the next word must be a Hello."""
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._open()

    def receive(self, within: float) -> Message | None:
        """The next message; None after `within` seconds, when woken, or when the link broke (`broken` is set).

        Raises RefusedMessage for one that cannot be read.
        """
        events = dict(self._poller.poll(int(within * 1000)))
        if self._wake_read in events:
            os.read(self._wake_read, 4096)
        if self._monitor in events:
            recv_monitor_message(self._monitor)
            self.broken = True
            return None
        if self._socket in events:
            return decode(self._socket.recv())
        return None

    def connected(self, within: float) -> bool:
        """Whether there is a coordinator to take a message, waiting for it at most `within` seconds."""
        return bool(self._socket.poll(int(within * 1000), zmq.POLLOUT))

    def send(self, message: Message, within: float = 1.0) -> bool:
        """Queue a message. False when there is no coordinator to take it within `within` seconds."""
        if not self.connected(within):
            return False
        self._socket.send(encode(message), flags=zmq.NOBLOCK)
        return True

    def wake(self) -> None:
        """From any thread: make `receive` return now."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._context.term()
        os.close(self._wake_read)
        os.close(self._wake_write)
