"""Control messages between worker and tracker: plain frozen values, no behaviour.

`codec` turns them into bytes and refuses whatever does not fit their schema.  A control frame is
at most 256 KiB; nothing bulky travels here.
"""

from dataclasses import dataclass

from ftcomm import __version__
from ftcomm.protocol.host_groups import Grouping
from ftcomm.protocol.link_messages import Relayed, Sharing
from ftcomm.protocol.operator_messages import OperatorMessage
from ftcomm.protocol.position import PRELUDE, Position


@dataclass(frozen=True, slots=True)
class PositionRange:
    """The positions ``(branch, version, lo), lo+step, ... < hi`` of one version."""

    version: int
    lo: int
    hi: int
    step: int = 1

    def seqnos(self) -> range:
        """The sequence numbers that the run names."""
        return range(self.lo, self.hi, self.step)


@dataclass(frozen=True, slots=True)
class Fetch:
    """One order of a plan: get the results of `run` from rank `source`."""

    source: int
    run: PositionRange


@dataclass(frozen=True, slots=True)
class LocalStates:
    """Version `version` has local states; those of `ranks` are held (Report)."""

    version: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LocalFetch:
    """One order of a plan: get the local state of `rank` from rank `source`."""

    source: int
    rank: int


@dataclass(frozen=True, slots=True)
class Member:
    """One place of an epoch's membership.

    ``python`` is empty where nobody is present.
    """

    rank: int
    worker_id: str
    incarnation: int
    host: str
    address: str
    port: int
    present: bool = True
    python: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """Ranks `a` < `b` cannot reach each other; `via` passes their bytes on (rule R12)."""

    a: int
    b: int
    via: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """What a worker that has been blocked in a collective for a while says of it.

    ``peers`` are the ranks that it waits for; no byte has come or gone for ``blocked_ms``.  It
    stands in the schedule's step ``step``: of two ranks at one position, the one in the lower step
    is behind.  -1 is before the first step, where links are made.
    """

    signature: bytes
    site: str
    peers: tuple[int, ...]
    blocked_ms: int
    step: int = -1


@dataclass(frozen=True, slots=True)
class CallMade:
    """One call of a worker's script; ``signature`` is empty if it was not known."""

    position: Position
    signature: bytes
    site: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """One part of a state: ``what`` says its type and size, ``digest`` stands for its content.

    Of a container that is taken apart, ``digest`` stands for its keys in order.
    """

    path: str
    what: str
    digest: bytes


# --- worker to tracker ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a worker, on every control connection (rules R1, R13).

    ``incarnation`` is 0 until the tracker has numbered this incarnation; ``nonce`` tells a
    reconnect from a new incarnation.  ``suspects`` are the ranks whose links broke in
    ``plan_epoch``: a suspicion is state, repeated until a newer epoch comes.  ``pid`` and ``start``
    name the process on its host (`ftcomm.config.process_identity`); ``group`` is its process group,
    which its launcher knows.
    ``release`` is the worker's ftcomm.
    ``python`` is the interpreter with its minor version: hashes of functions hold within one.
    """

    worker_id: str
    nonce: bytes
    incarnation: int
    host: str
    address: str
    port: int
    plan_epoch: int
    revoke_epoch: int
    suspects: tuple[int, ...]
    closed: bool
    tables: bytes
    asked: tuple[tuple[str, str], ...] = ()
    pid: int = 0
    start: int = 0
    group: int = 0
    release: str = __version__
    python: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's frozen state, the answer to ``Revoke``; what it lists is pinned.

    ``committed`` is the version of the checkpoint held (-1: none), ``tentative`` that of an
    uncommitted copy (-1: none) with its ``digest``.  ``caught_up`` is the newest epoch whose
    plan this incarnation had fetched everything for (0: none).  ``signature`` is empty outside a
    call. ``prelude_length`` is the seqno of ``load_checkpoint``, -1 while unknown.  ``locals``
    names every version held, committed or tentative, that has local states.
    """

    epoch: int
    position: Position
    committed: int
    tentative: int
    digest: bytes
    runs: tuple[PositionRange, ...]
    prelude_length: int
    caught_up: int
    suspects: tuple[int, ...]
    signature: bytes
    site: str
    closed: bool
    locals: tuple[LocalStates, ...] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sign of incarnation; the tracker answers with `HeartbeatAck` of the same number.

    `log_bytes` is what the results kept since the last checkpoint count with (rule R9).
    """

    number: int
    epoch: int
    position: Position
    blocked: Blocked | None = None
    log_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Suspect:
    """Data links to `ranks` broke while `epoch` was running."""

    epoch: int
    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Mismatch:
    """This rank, at ``position``, saw that a peer is in another call.

    ``peer`` is this rank itself where its log has the result of another call.  ``states`` means
    that both call the same ``checkpoint()``, and the digests of their states differ.
    """

    epoch: int
    position: Position
    signature: bytes
    site: str
    peer: int
    peer_position: Position
    peer_signature: bytes
    peer_site: str
    states: bool = False


@dataclass(frozen=True, slots=True)
class FatalReport:
    """This rank found, at `position`, what ends the job; all are to raise the exception `error`.

    The tracker takes only some names; see `ftcomm_tracker.core.worker_messages`.
    """

    epoch: int
    position: Position
    error: str
    cause: str


@dataclass(frozen=True, slots=True)
class Calls:
    """The last calls of this process up to ``position``, where it stands: answers `AskCalls`.

    ``loaded`` is the version that it loaded, -1 before it has loaded one.  ``digest`` is that of
    the state that it gives to the next checkpoint, empty if it gives none.
    """

    position: Position
    calls: tuple[CallMade, ...]
    loaded: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Leaves:
    """The parts of the state that this rank gives to checkpoint ``version``: answers `AskCalls`."""

    version: int
    leaves: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class Fetched:
    """All fetches of the plan of `epoch` have arrived here."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """First collective completed in `epoch`, with what the recovery cost here."""

    epoch: int
    fetch_ms: int
    link_ms: int
    fetched: int
    replayed: int


@dataclass(frozen=True, slots=True)
class Closed:
    """This worker's own close() has completed."""

    version: int


@dataclass(frozen=True, slots=True)
class Leave:
    """This worker ends without having closed: an exception left the ``with`` block."""

    reason: str


# --- tracker to worker ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to `Hello`: the job, this process's number and the job's settings."""

    job_id: str
    generation: int
    incarnation: int
    world_size: int
    epoch: int
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer to a `Hello` that cannot join; ``error`` is the name of the exception to raise."""

    error: str
    reason: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Revoke:
    """The membership is about to change: stop, report for `epoch`."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class MemberDelta:
    """Places that differ from those told on this connection before; comes before a `Plan`.

    ``grouping`` is with the first one only, since it never changes in a job.  See `member_deltas`.
    """

    members: tuple[Member, ...]
    grouping: Grouping = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What the tracker decided for one member in `epoch` (design, Decide).

    ``commit`` is the tentative version that is now committed (-1: none).  ``load`` is the
    checkpoint version that this member must fetch from one of ``load_from`` (-1: none).
    Positions below ``frontier`` are served from the log, at and above it executed by all.
    ``locals`` are the local states of its version that this member must fetch, None: it has none.
    ``routes`` are the pairs of ranks whose links go through a third.
    ``grouping`` says which ranks shared a host when the group formed; it never changes in a job.
    It and ``members`` are the same for all: they travel in `MemberDelta` messages before the plan.
    """

    epoch: int
    rank: int
    frontier: Position
    prelude_length: int
    commit: int
    load: int
    load_from: tuple[int, ...]
    fetches: tuple[Fetch, ...]
    locals: tuple[LocalFetch, ...] | None = None
    routes: tuple[Route, ...] = ()
    members: tuple[Member, ...] = ()
    grouping: Grouping = ()


@dataclass(frozen=True, slots=True)
class Settled:
    """Every member has fetched what the plan of `epoch` gave it: pins may go."""

    epoch: int


@dataclass(frozen=True, slots=True)
class HeartbeatAck:
    """The tracker has read heartbeat `number` and still counts the sender as a member."""

    number: int


@dataclass(frozen=True, slots=True)
class AskCalls:
    """Two ranks call different collectives: which calls has this rank made?

    ``version`` is the checkpoint whose states differ, -1 if that is not the question.
    """

    version: int


@dataclass(frozen=True, slots=True)
class FatalDecision:
    """Terminal for the job: every rank raises the exception class named by `error`."""

    error: str
    cause: str
    epoch: int
    position: Position
    rank: int


@dataclass(frozen=True, slots=True)
class Fenced:
    """This process's place has been given away."""

    reason: str


@dataclass(frozen=True, slots=True)
class AllClosed:
    """All ranks have closed, and that is journalled: stop serving and leave."""

    version: int


# --- between workers, on a fetch link (served from the log by the control thread) ------------


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Send checkpoint `load` (-1: none), the local states of `locals`, the results of `runs`.

    In this order; the local states are those of version `local_version`.
    """

    epoch: int
    load: int
    runs: tuple[PositionRange, ...]
    local_version: int = PRELUDE
    locals: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchItem:
    """Header of one served result; `nbytes` raw bytes follow.

    ``what`` is ``"result"``, ``"checkpoint"`` or ``"local"``; for the latter two
    `position.version` is the version and the signature is empty.  ``rank`` owns a local state.
    ``digests`` are those of the inputs, 16 bytes a rank, where the job verifies them.
    """

    what: str
    position: Position
    signature: bytes
    dtype: int
    shape: tuple[int, ...]
    nbytes: int
    rank: int = -1
    digests: bytes = b""


@dataclass(frozen=True, slots=True)
class FetchWait:
    """The checkpoint that is due is still being packed; repeated until it comes."""


@dataclass(frozen=True, slots=True)
class FetchEnd:
    """Everything asked for has been sent, or `missing` says what is not held."""

    missing: str = ""


# --- any of these ways ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class More:
    """The first part of a list that does not fit one frame.  See `splitting`.

    It comes before the `Report`, the `FetchRequest` or the `Plan` that ends the list.
    """

    runs: tuple[PositionRange, ...] = ()
    fetches: tuple[Fetch, ...] = ()


WorkerMessage = (
    Hello
    | Report
    | Heartbeat
    | Suspect
    | Mismatch
    | FatalReport
    | Calls
    | Leaves
    | Fetched
    | Resumed
    | Closed
    | Leave
)
TrackerMessage = (
    Welcome
    | Refused
    | Revoke
    | Plan
    | Settled
    | HeartbeatAck
    | AskCalls
    | FatalDecision
    | Fenced
    | AllClosed
)
LinkMessage = FetchRequest | FetchItem | FetchWait | FetchEnd | Relayed | Sharing
ControlMessage = WorkerMessage | TrackerMessage | MemberDelta | OperatorMessage | LinkMessage
Frame = ControlMessage | More  # what one frame carries
