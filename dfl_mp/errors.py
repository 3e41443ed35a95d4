"""The exceptions of the project, one small tree. A leaf: no torch, no project imports."""


class DflError(Exception):
    """Base of every error that dfl-mp raises on purpose."""


class ConfigError(DflError):
    """The user's input is wrong: the message names the field, row or file. Ends the command with exit code 2."""


class TransportError(DflError):
    """A link or a ring did not do what was asked of it; the message names the peer."""


class DeadlineError(TransportError):
    """Something did not come in time; the message names what and how long it was waited for."""


class RefusedMessage(TransportError):
    """A message or descriptor that is malformed, oversized, stale or unknown; it is dropped and counted."""


class CheckpointError(DflError):
    """A checkpoint is torn, foreign or does not fit; the message names file and field."""


class WorkerFailed(DflError):
    """A worker ended the run; the message names it and carries its last traceback."""
