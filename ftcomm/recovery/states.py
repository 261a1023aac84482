"""The worker machine's states, its legal edges, and the small values that it deals in.

States (the diagram in docs/recovery.md is generated from `TRANSITIONS`)::

    DETACHED     no epoch yet: waiting for a welcome and the first Revoke
    STOPPED      has reported; the position is frozen until a plan comes
    CATCHING_UP  has a plan; replays what it holds, fetches what it lacks
    RUNNING      has a plan and everything that the plan gave it
    FINISHED     all ranks have closed, and that is journalled
    FAILED       a verdict, or fenced, or the tracker is lost; the error sticks
"""

import enum
from dataclasses import dataclass
from typing import Any


class State(enum.Enum):
    """Where this life stands in the job; see the module's text."""

    DETACHED = "DETACHED"
    STOPPED = "STOPPED"
    CATCHING_UP = "CATCHING_UP"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"


# (from, cause, to): the only edges that the machine may take.
TRANSITIONS: tuple[tuple[State, str, State], ...] = (
    (State.DETACHED, "Revoke", State.STOPPED),
    (State.STOPPED, "Revoke", State.STOPPED),
    (State.STOPPED, "Plan", State.RUNNING),
    (State.STOPPED, "Plan with fetches", State.CATCHING_UP),
    (State.CATCHING_UP, "last fetch ended", State.RUNNING),
    (State.CATCHING_UP, "Revoke", State.STOPPED),
    (State.RUNNING, "Revoke", State.STOPPED),
    (State.RUNNING, "AllBye", State.FINISHED),
    (State.STOPPED, "AllBye", State.FINISHED),
    (State.CATCHING_UP, "AllBye", State.FINISHED),
    (State.DETACHED, "AllBye", State.FINISHED),
    *(
        (state, cause, State.FAILED)
        for state in (State.DETACHED, State.STOPPED, State.CATCHING_UP, State.RUNNING)
        for cause in ("Verdict", "Fenced", "tracker lost", "local failure")
    ),
    (State.DETACHED, "Refused", State.FAILED),
    (State.STOPPED, "Refused", State.FAILED),
    (State.CATCHING_UP, "Refused", State.FAILED),
    (State.RUNNING, "Refused", State.FAILED),
)
EDGES = frozenset(TRANSITIONS)


_IN_WORDS = {
    State.DETACHED: "waits for the tracker",
    State.STOPPED: "stopped here until the group is complete again",
    State.CATCHING_UP: "fetches the results that this process has missed",
    State.RUNNING: "runs",
    State.FINISHED: "all ranks have closed",
    State.FAILED: "can go on no more",
}


def state_in_words(state: State, stop_reason: str, error: Exception | None) -> str:
    """What a log line says of a change to `state`.

    Args:
        state: the new one.
        stop_reason: of the newest Revoke.
        error: with which the machine has failed.
    """
    why = {State.STOPPED: stop_reason, State.FAILED: str(error or "")}.get(state, "")
    return f"{_IN_WORDS[state]}: {why}" if why else _IN_WORDS[state]


class Step(enum.Enum):
    """What the user's thread must do at its position, when it is neither served nor refused."""

    EXECUTE = "execute"
    WAIT = "wait"


class Outcome(enum.Enum):
    """What became of an attempt to complete a position."""

    DONE = "done"
    REVOKED = "revoked"  # discard the result; ask `begin` again
    HEAR_FIRST = "hear first"  # this process was stopped: the tracker must be heard first (R1)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this process is; drawn and measured by the driver, once per life."""

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
    python: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the core needs of the job's settings; times are in seconds."""

    detect_within: float = 5.0
    replicas: int = 2
    local_replicas: int = 2
    tracker_timeout: float = 600.0
    keeps_results: bool = True
    keep_by_all: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One version of the user's state; opaque here."""

    version: int
    value: Any
    digest: bytes = b""
