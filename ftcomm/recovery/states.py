"""The worker machine's states, its legal edges, and the small values that it deals in.

States (the diagram in docs/design/states.md is generated from `WORKER_STATES`)::

    DETACHED     no epoch yet: waiting for a welcome and the first Revoke
    STOPPED      has reported; the position is frozen until a plan comes
    CATCHING_UP  has a plan; replays what it holds, fetches what it lacks
    RUNNING      has a plan and everything that the plan gave it
    FINISHED     all ranks have closed, and that is journalled
    FAILED       a fatal decision, or fenced, or the tracker is lost; the error sticks
"""

import enum
from dataclasses import dataclass
from typing import Any

from ftcomm.config.state_table import StateTable


class WorkerState(enum.Enum):
    """State of this incarnation in the job; see the module's text."""

    DETACHED = "DETACHED"
    STOPPED = "STOPPED"
    CATCHING_UP = "CATCHING_UP"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"


WORKER_STATES = StateTable(
    (WorkerState.DETACHED, "Revoke", WorkerState.STOPPED),
    (WorkerState.STOPPED, "Revoke", WorkerState.STOPPED),
    (WorkerState.STOPPED, "Welcome as new", WorkerState.DETACHED),
    (WorkerState.STOPPED, "Plan", WorkerState.RUNNING),
    (WorkerState.STOPPED, "Plan with fetches", WorkerState.CATCHING_UP),
    (WorkerState.CATCHING_UP, "last fetch ended", WorkerState.RUNNING),
    (WorkerState.CATCHING_UP, "Revoke", WorkerState.STOPPED),
    (WorkerState.RUNNING, "Revoke", WorkerState.STOPPED),
    (WorkerState.RUNNING, "AllClosed", WorkerState.FINISHED),
    (WorkerState.STOPPED, "AllClosed", WorkerState.FINISHED),
    (WorkerState.CATCHING_UP, "AllClosed", WorkerState.FINISHED),
    (WorkerState.DETACHED, "AllClosed", WorkerState.FINISHED),
    *(
        (state, cause, WorkerState.FAILED)
        for state in (
            WorkerState.DETACHED,
            WorkerState.STOPPED,
            WorkerState.CATCHING_UP,
            WorkerState.RUNNING,
        )
        for cause in ("fatal decision", "Fenced", "tracker lost", "local failure")
    ),
    (WorkerState.DETACHED, "Refused", WorkerState.FAILED),
    (WorkerState.STOPPED, "Refused", WorkerState.FAILED),
    (WorkerState.CATCHING_UP, "Refused", WorkerState.FAILED),
    (WorkerState.RUNNING, "Refused", WorkerState.FAILED),
)


_IN_WORDS = {
    WorkerState.DETACHED: "waits for the tracker",
    WorkerState.STOPPED: "stopped here until the group is complete again",
    WorkerState.CATCHING_UP: "fetches the results that this process has missed",
    WorkerState.RUNNING: "runs",
    WorkerState.FINISHED: "all ranks have closed",
    WorkerState.FAILED: "can go on no more",
}


def state_in_words(state: WorkerState, stop_reason: str, error: Exception | None) -> str:
    """Describe a change to `state` for a log line."""
    why = {WorkerState.STOPPED: stop_reason, WorkerState.FAILED: str(error or "")}.get(state, "")
    return f"{_IN_WORDS[state]}: {why}" if why else _IN_WORDS[state]


class NextStep(enum.Enum):
    """Next step of the user's thread at its position, when it is neither served nor refused."""

    EXECUTE = "execute"
    WAIT = "wait"


class Completion(enum.Enum):
    """Outcome of an attempt to complete a position."""

    DONE = "done"
    REVOKED = "revoked"  # discard the result; ask `begin` again
    CONFIRM_FIRST = (
        "confirm first"  # this process was stopped: the tracker must confirm it first (R1)
    )


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of this process; drawn and measured by the driver, once per incarnation."""

    worker_id: str
    nonce: bytes
    host: str
    address: str
    port: int
    tables: bytes = b""
    asked: tuple[tuple[str, str], ...] = ()
    pid: int = 0
    start: int = 0
    group: int = 0
    zone: str = ""
    spare: bool = False


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Job settings that the core needs; times are in seconds."""

    detect_within: float = 5.0
    replicas: int = 2
    local_replicas: int = 2
    tracker_timeout: float = 600.0
    reattach_within: float = 30.0
    keep_by_all: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One version of the user's state; opaque here.

    ``own`` is a second copy that was made in advance: `load_checkpoint` may give it to the user.
    """

    version: int
    value: Any
    digest: bytes = b""
    own: Any | None = None
