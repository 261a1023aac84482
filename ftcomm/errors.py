"""Every error that ftcomm raises, sorted by who is to blame and what to do next.

Each carries the rank, epoch and position it is about (None where unknown), the cause and the
remedy, so that a log line is enough to act on.  `exit_code` is what a training script should end
with; the launcher reads it to decide whether a restart makes sense.

Some also are what Python has for the purpose, so that ``except ValueError`` and the like see them.
Three of them are an `OSError`: code in here that catches `OSError`, `ValueError`, `RuntimeError` or
`MemoryError` around what may raise these must let them pass.
"""

from typing import ClassVar


class FtcommError(Exception):
    """Base of all errors of this library.

    Attributes:
        cause: what happened, in one sentence.
        rank: the rank that the error is about, None when it is about no rank.
        epoch: the epoch in which it happened, None before the first.
        position: the collective concerned, as text ``version.seqno``.
        remedy: what the user can do.
        exit_code: the exit status by which `ftcomm-tracker run` and `supervise` know this error.
    """

    exit_code: ClassVar[int] = 70
    default_remedy: ClassVar[str] = ""

    def __init__(
        self,
        cause: str,
        *,
        rank: int | None = None,
        epoch: int | None = None,
        position: object | None = None,
        remedy: str | None = None,
    ) -> None:
        self.cause = cause
        self.rank = rank
        self.epoch = epoch
        self.position = None if position is None else str(position)
        self.remedy = self.default_remedy if remedy is None else remedy
        super().__init__(self._render())

    def _render(self) -> str:
        facts = [
            f"{name} {value}"
            for name, value in (
                ("rank", self.rank),
                ("epoch", self.epoch),
                ("position", self.position),
            )
            if value is not None
        ]
        where = f" [{', '.join(facts)}]" if facts else ""
        advice = f" - {self.remedy}" if self.remedy else ""
        return f"{self.cause}{where}{advice}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.cause, self.rank, self.epoch, self.position, self.remedy)


def _rebuild(
    kind: type[FtcommError],
    cause: str,
    rank: int | None,
    epoch: int | None,
    position: str | None,
    remedy: str,
) -> FtcommError:
    """Unpickle: exceptions travel through multiprocessing of the user's own."""
    return kind(cause, rank=rank, epoch=epoch, position=position, remedy=remedy)


# --- the job is over for everyone -----------------------------------------------------------


class JobLostError(FtcommError):
    """A result, checkpoint or local state that is needed exists nowhere any more."""

    exit_code = 71
    default_remedy = (
        "read why the workers died or left, and start the job again: with --checkpoint, or under"
        " run --state-dir, the same command goes on from the newest durable checkpoint, but serve"
        " needs another --state-dir; without both, give another state directory"
    )


class RolledBackError(FtcommError):
    """The job goes on from a durable checkpoint in a new attempt: this process must start again."""

    exit_code = 76
    default_remedy = "start the script again: it loads the checkpoint that the new attempt has"


class CollectiveMismatchError(FtcommError):
    """Two ranks called different collectives at one position: a defect of the script."""

    exit_code = 72
    default_remedy = (
        "make every rank call the same collectives in the same order, with the same shapes, "
        "and give checkpoint() the same state"
    )


class RankLostError(FtcommError):
    """A rank is gone and will not be replaced."""

    exit_code = 73
    default_remedy = "fix the cause shown in the named rank's output, then start the job again"


class ScriptFailedError(FtcommError):
    """The script fails by the same error on all ranks, or each time a rank's is started."""

    exit_code = 83
    default_remedy = (
        "repair the script or its input: a traceback, if any, is in the workers' output; then start"
        " the job again"
    )


class LogLimitError(FtcommError, MemoryError):
    """The results kept since the last checkpoint would pass the job's limit."""

    exit_code = 74
    default_remedy = "call checkpoint() more often, or raise log_limit at the tracker"


class StateChangedError(FtcommError):
    """The script wrote to an array of a lazy checkpoint (found by --verify checkpoints)."""

    exit_code = 82
    default_remedy = (
        "put new arrays into the next state, or take turns with two sets of them, "
        "or checkpoint without lazy=True"
    )


class CollectiveTimeoutError(FtcommError, TimeoutError):
    """A collective took longer than the ``deadline`` that one rank gave it."""

    exit_code = 80
    default_remedy = "see what the named ranks were doing; raise the deadline if they were busy"


class JobFinishedError(FtcommError):
    """All ranks have closed; there is nothing left to join."""

    exit_code = 77
    default_remedy = "nothing to do: do not restart this worker"


class JobStoppedError(FtcommError):
    """The job was stopped by its operator."""

    exit_code = 78
    default_remedy = "nothing to do here: the operator stopped the job"


# --- this process alone ------------------------------------------------------------------------


class FencedError(FtcommError):
    """This process lost its place to a newer incarnation of its worker id, or to a spare."""

    exit_code = 75
    default_remedy = "exit; the place is taken, do not restart this process"


class EvictedError(FtcommError):
    """This process was given up: another worker and it cannot reach each other."""

    exit_code = 81
    default_remedy = "start it again, on another host if there is one; repair the network"


class TrackerLostError(FtcommError, ConnectionError):
    """The tracker was needed and could not be reached in time."""

    exit_code = 79
    default_remedy = (
        "start the tracker again on its state directory, then restart the workers; without that"
        " directory start all anew: with --checkpoint they go on from the newest checkpoint"
    )


class ThreadError(FtcommError, RuntimeError):
    """A communicator was used by two threads at once, or inside a callback of its own."""

    default_remedy = "use a communicator from one thread at a time"


class ForkError(FtcommError, RuntimeError):
    """A communicator or tracker was used in a forked child."""

    default_remedy = (
        "make the call in the parent process, or fork before init() and let one of the two join;"
        " a child of a process that has joined may not join under its worker id"
    )


class ClosedError(FtcommError):
    """A communicator was used after close()."""

    default_remedy = (
        "keep one communicator open for all the work: a job that is closed has ended, and"
        " ftcomm.launch() runs another one"
    )


# --- the environment ---------------------------------------------------------------------------


class ThreadLimitError(FtcommError):
    """This process may not start one more thread."""

    default_remedy = (
        "raise the limit of threads: ulimit -u, or pids.max of the container or service; then "
        "call again, nothing has begun"
    )


class AuthenticationError(FtcommError, PermissionError):
    """The other side does not hold the job's token."""

    default_remedy = (
        "give every process the token file of this job's tracker, as FTCOMM_TOKEN_FILE or an option"
    )


class ProtocolVersionError(FtcommError):
    """The other side speaks another version of the protocol."""

    default_remedy = "install the same ftcomm version everywhere"


class ProtocolError(FtcommError):
    """Bytes from a peer that are not a message of this protocol."""

    default_remedy = "check that only ftcomm processes use this port"


class ConfigError(FtcommError, ValueError):
    """A setting is missing, malformed, or not what the job has."""

    exit_code = 64


def error_named(name: str) -> type[FtcommError] | None:
    """The error class of this module called `name`, as it comes over the wire; None if none is."""
    kind = globals().get(name)
    return kind if isinstance(kind, type) and issubclass(kind, FtcommError) else None


def exit_code_of(name: str) -> int:
    """Exit code of the error class called `name`."""
    return (error_named(name) or FtcommError).exit_code


def remedy_of(name: str) -> str:
    """Return the remedy for the error class called `name`; empty if none is known."""
    return (error_named(name) or FtcommError).default_remedy
