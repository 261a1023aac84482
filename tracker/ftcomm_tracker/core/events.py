"""Events of the roster and the effects that it asks of the server: frozen values."""

from typing import Any

from ftcomm.config.job_settings import JobSettings
from ftcomm.durable.records import EndedRecord, EpochRecord
from ftcomm.errors import FtcommError
from ftcomm.protocol.durable.store_messages import ObjectWritten
from ftcomm.protocol.host_groups import Grouping
from ftcomm.protocol.messages import (
    Hello,
    TrackerMessage,
    WorkerMessage,
)
from ftcomm.protocol.value_classes import dataclass
from ftcomm_tracker.core.control_paths import ControlPath
from ftcomm_tracker.core.durable.chain_facts import ChainFacts
from ftcomm_tracker.core.durable_state import Durable

# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """An authenticated connection has said `Hello`; its ends, as far as they are known."""

    conn: int
    hello: Hello
    path: ControlPath | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """A message from a connection that has joined."""

    conn: int
    message: WorkerMessage


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """A connection has ended."""

    conn: int
    reason: str


@dataclass(frozen=True, slots=True)
class LivenessAsserted:
    """A supervisor saw the worker's process use the CPU: it is alive, heartbeats or not."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A supervisor will not start this worker again, maybe because its script always fails."""

    worker_id: str
    reason: str
    script_failed: bool = False


@dataclass(frozen=True, slots=True)
class Died:
    """A launcher or supervisor saw how the process `pid` of its worker ended, and maybe why."""

    worker_id: str
    pid: int
    how: str


@dataclass(frozen=True, slots=True)
class Supervised:
    """A launcher says which process it runs as a worker.

    Attributes:
        worker_id: the worker.
        host: name of the launcher's machine.
        pid: number of the process there; 0 if the launcher runs none at present.
        age_s: seconds since it was started.
    """

    worker_id: str
    host: str
    pid: int
    age_s: float


@dataclass(frozen=True, slots=True)
class Stalled:
    """The tracker itself did not run for `for_s`: no deadline may pass by that time."""

    for_s: float


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The operator ends the job."""

    reason: str


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another tracker says that the workers of `job_id` follow it in `generation`."""

    job_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class SeriesPut:
    """The first records of the job are in the store's chain."""


@dataclass(frozen=True, slots=True)
class VersionPut:
    """The record of `version` is in the store's chain."""

    version: int


@dataclass(frozen=True, slots=True)
class ObjectsMissing:
    """The record of `version` was not put: the store has lost the objects `names`."""

    version: int
    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class FinishedPut:
    """The record of the job's end is in the store's chain."""


@dataclass(frozen=True, slots=True)
class PutDelayed:
    """The store does not take a record; the server goes on trying."""

    reason: str


@dataclass(frozen=True, slots=True)
class Overtaken:
    """The chain has a later attempt or tracker: this one may acknowledge nothing any more.

    Attributes:
        reason: who has overtaken it.
        by_tracker: that one leads the same attempt, and its workers are members there.
    """

    reason: str
    by_tracker: bool = False


@dataclass(frozen=True, slots=True)
class EpochPut:
    """The record of an epoch and its roster is in the store's chain."""

    record: EpochRecord


@dataclass(frozen=True, slots=True)
class EndedPut:
    """The record of the fatal decision is in the store's chain."""


@dataclass(frozen=True, slots=True)
class StoreSeen:
    """A tracker that waits beside another one has looked into the store.

    Attributes:
        chain: its records.
        leader: the process that beats there, in words; empty for none.
        is_silent: no process beats there any more.
        now_us: the time in microseconds, for the age of a checkpoint.
        trouble: why the store could not be read; the rest is then what was seen before.
    """

    chain: ChainFacts
    leader: str
    is_silent: bool
    now_us: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The record by which this tracker takes over is in the chain; None: another one has come."""

    record: EpochRecord | None


@dataclass(frozen=True, slots=True)
class ChainRead:
    """The store of a job that is rebuilt has been read (`ReadStore`).

    Attributes:
        chain: its records.
        now_us: the time in microseconds, for the age of a checkpoint.
        nonce: drawn for the records of the attempt, if there are none yet.
    """

    chain: ChainFacts
    now_us: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline has passed."""


Event = (
    Joined
    | Said
    | ConnectionLost
    | LivenessAsserted
    | GivenUp
    | Died
    | Supervised
    | Stalled
    | StopAsked
    | Superseded
    | SeriesPut
    | VersionPut
    | ObjectsMissing
    | FinishedPut
    | PutDelayed
    | Overtaken
    | EpochPut
    | EndedPut
    | StoreSeen
    | Claimed
    | ChainRead
    | Tick
)

# --- effects ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message on a connection."""

    conn: int
    message: TrackerMessage


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close a connection after what was sent on it; no `ConnectionLost` needs to follow."""

    conn: int
    reason: str


@dataclass(frozen=True, slots=True)
class Persist:
    """Journal this before any later effect is carried out."""

    durable: Durable


@dataclass(frozen=True, slots=True)
class TakeGeneration:
    """Number this tracker anew, before any later effect: its job was rebuilt from its workers.

    Attributes:
        generation: above all that the workers have seen.
        old_trackers: addresses of the trackers before; those that still run are to be told.
    """

    generation: int
    old_trackers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepDown:
    """End this tracker at once: its workers follow a newer one, or may do so.

    Attributes:
        reason: why.
        remedy: what to do, empty for nothing.
    """

    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A line for people."""

    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Death:
    """One process that has ended.

    Attributes:
        worker_id: its worker's.
        pid: of the process that was started for the worker.
        host: on which it ran.
        how: how it ended, and why as far as that is known.
    """

    worker_id: str
    pid: int
    host: str
    how: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"worker": self.worker_id, "pid": self.pid, "host": self.host, "how": self.how}


@dataclass(frozen=True, slots=True)
class Incident:
    """One epoch change from its first evidence to the first collective after it.

    Attributes:
        epoch: the epoch that it led to.
        reason: the first evidence, in words.
        victims: worker ids whose connection was lost or whose incarnation was replaced.
        suspects: ranks that were named by link suspicions.
        started_at: the tracker's clock at the first evidence, seconds.
        completed: every member went on; else another change, or the job's end, came before.
        detect_ms: how long a victim had been silent when that was the evidence, else 0.
        stop_ms: until the last survivor had reported.
        replace_ms: until the last replacement had reported, 0 when nobody was replaced.
        decide_ms: taken by the decision and its sending.
        fetch_ms: longest catch-up of any member.
        link_ms: longest time from a member's plan (or its last fetch) to its next collective.
        fetched: results fetched over the network by all members.
        replayed: results returned from the log instead of being computed.
        frontier: position at which all went on.
        routes: pairs of ranks whose links go through a third, as (one, other, relay).
        total_ms: from the first evidence to the last member's next collective, or to what came
            before it.
        causes: how processes of victims ended, as far as somebody has said.
    """

    epoch: int
    reason: str
    victims: tuple[str, ...]
    suspects: tuple[int, ...]
    started_at: float
    completed: bool
    detect_ms: float
    stop_ms: float
    replace_ms: float
    decide_ms: float
    fetch_ms: float
    link_ms: float
    fetched: int
    replayed: int
    frontier: str
    total_ms: float
    routes: tuple[tuple[int, int, int], ...] = ()
    causes: tuple[Death, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, without the tracker's private clock."""
        return {
            "epoch": self.epoch,
            "reason": self.reason,
            "victims": list(self.victims),
            "suspects": list(self.suspects),
            "causes": [death.to_dict() for death in self.causes],
            "completed": self.completed,
            "frontier": self.frontier,
            "routes": [list(route) for route in self.routes],
            "fetched": self.fetched,
            "replayed": self.replayed,
            "ms": {
                "detect": round(self.detect_ms, 1),
                "stop": round(self.stop_ms, 1),
                "replace": round(self.replace_ms, 1),
                "decide": round(self.decide_ms, 1),
                "fetch": round(self.fetch_ms, 1),
                "link": round(self.link_ms, 1),
                "total": round(self.total_ms, 1),
            },
        }


@dataclass(frozen=True, slots=True)
class IncidentClosed:
    """A recovery is over; write its record."""

    incident: Incident


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over and everyone who could be told has been told."""

    ok: bool
    error: str = ""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class PutVersion:
    """Put the record of a version into the store's chain; then `VersionPut`, or `ObjectsMissing`.

    Attributes:
        attempt: number of the attempt.
        version: number of the checkpoint.
        epoch: the newest at that time.
        objects: hold its state, each byte once, its local states, and the prelude's results.
        nbytes: of the packed state.
        digest: of the packed state.
        prelude_length: calls of the prelude.
        local_ranks: ranks with a local state, None if it has none.
    """

    attempt: int
    version: int
    epoch: int
    objects: tuple[ObjectWritten, ...]
    nbytes: int
    digest: bytes
    prelude_length: int
    local_ranks: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class PutNextDigest:
    """Keep the digest of `version` in the store: it was committed behind the newest durable one."""

    attempt: int
    version: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class PutSeries:
    """Put the records of series and attempt 1, as far as they are missing; then `SeriesPut`.

    Whose they are is told by the nonce: found with another one, this tracker is `Overtaken`.

    Attributes:
        grouping: of the ranks, for all attempts.
        tables: digest of the algorithm tables, likewise.
        nonce: of the attempt's tracker.
    """

    grouping: Grouping
    tables: bytes
    nonce: bytes


@dataclass(frozen=True, slots=True)
class PutFinished:
    """Put the record of the job's end, at `version`, into the store's chain; then `FinishedPut`."""

    attempt: int
    version: int


@dataclass(frozen=True, slots=True)
class PutEpoch:
    """Put the record of an epoch into the store's chain; then `EpochPut`."""

    record: EpochRecord


@dataclass(frozen=True, slots=True)
class PutEnded:
    """Put the record of the fatal decision into the store's chain; then `EndedPut`."""

    record: EndedRecord


@dataclass(frozen=True, slots=True)
class PutClaim:
    """Put the record by which this tracker leads an attempt; then `Claimed`.

    Attributes:
        record: with the roster that the chain has.
        after: length of the chain that it was made from: its number is the next one, or it fails.
    """

    record: EpochRecord
    after: int


@dataclass(frozen=True, slots=True)
class ReadStore:
    """Read the chain of a job that is rebuilt; then `ChainRead`.

    Attributes:
        job_id: as its workers know it; the store must have the sign of its tracker.
        settings: of the job, which name the store.
    """

    job_id: str
    settings: JobSettings


@dataclass(frozen=True, slots=True)
class RefuseRebuild:
    """End this tracker by `error`, once what it has sent has gone out: it takes no job up."""

    error: FtcommError


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Begin the next attempt from the store: there is none to take up."""


Effect = (
    Send
    | Disconnect
    | Persist
    | TakeGeneration
    | StepDown
    | Note
    | IncidentClosed
    | JobEnded
    | PutSeries
    | PutVersion
    | PutNextDigest
    | PutFinished
    | PutEpoch
    | PutEnded
    | PutClaim
    | ReadStore
    | RefuseRebuild
    | StartAttempt
)
