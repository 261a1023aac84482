"""Control messages between worker and tracker: plain frozen values, no behaviour.

The annotations are also the messages' schema: `codec` derives from them what it writes and what it
accepts.  A control frame is at most 256 KiB; nothing bulky travels here.
"""

from typing import Annotated

from ftcomm import __version__
from ftcomm.protocol.durable.store_messages import (
    Marked,
    MarkVersion,
    NextDigest,
    ObjectWritten,
    Restore,
    RestoreFailed,
    VersionDurable,
    VersionGivenUp,
    WriteFailed,
    WriteObjects,
)
from ftcomm.protocol.field_types import (
    MAX_CALLS,
    MAX_ENTRIES,
    MAX_LEAVES,
    MAX_LOCAL_VERSIONS,
    MAX_ROUTES,
    MAX_TRACKERS_LOST,
    MAX_WORLD_SIZE,
    RUNS_OF_A_FRAME,
    U32,
    U64,
    Address,
    Blob,
    LeafDigest,
    LeafKind,
    LeafPath,
    LogBytes,
    Name,
    Nonce,
    PackedSignature,
    Port,
    Prose,
    Rank,
    RankOrNone,
    Ranks,
    SeqnoOrNone,
    SettingPairs,
    Site,
    Ticks,
    WorldSize,
)
from ftcomm.protocol.host_groups import Grouping
from ftcomm.protocol.link_messages import LinkMessage
from ftcomm.protocol.operator_messages import OperatorMessage
from ftcomm.protocol.position import Position, PositionRange, PositionRanges, Version
from ftcomm.protocol.schema import NOT_SENT, AtMost
from ftcomm.protocol.spares.prefetch_messages import Prefetch, Prefetched
from ftcomm.protocol.value_classes import dataclass


@dataclass(frozen=True, slots=True)
class Fetch:
    """One order of a plan: get the results of `run` from rank `source`."""

    source: Rank
    run: PositionRange


Fetches = Annotated[tuple[Fetch, ...], AtMost(RUNS_OF_A_FRAME)]


@dataclass(frozen=True, slots=True)
class LocalStates:
    """Version `version` has local states; those of `ranks` are held (Report)."""

    version: Version
    ranks: Ranks


@dataclass(frozen=True, slots=True)
class LocalFetch:
    """One order of a plan: get the local state of `rank` from rank `source`."""

    source: Rank
    rank: Rank


@dataclass(frozen=True, slots=True)
class Member:
    """One place of an epoch's membership."""

    rank: Rank
    worker_id: Name
    incarnation: U32
    host: Name
    address: Address
    port: Port
    present: bool = True
    nonce: Nonce = b""


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """One rank of the roster that a worker knows: who has it, and which process that is."""

    worker_id: Name
    incarnation: U32
    nonce: Nonce
    host: Name
    present: bool


@dataclass(frozen=True, slots=True)
class Route:
    """Ranks `a` < `b` cannot reach each other; `via` passes their bytes on (rule R12)."""

    a: Rank
    b: Rank
    via: Rank


@dataclass(frozen=True, slots=True)
class Blocked:
    """Report of a worker that has been blocked in a collective for a while.

    ``peers`` are the ranks that it waits for; no byte has come or gone for ``blocked_ms``.  It
    stands in the schedule's step ``step``: of two ranks at one position, the one in the lower step
    is behind.  -1 is before the first step, where links are made.

    Without ``peers`` it waits for the record of its durable checkpoint, which is the call before
    its position: it waits for no rank, and has called nothing there yet.
    """

    signature: PackedSignature
    site: Prose
    peers: Ranks
    blocked_ms: U32
    step: SeqnoOrNone = -1


@dataclass(frozen=True, slots=True)
class CallMade:
    """One call of a worker's script; ``signature`` is empty if it was not known."""

    position: Position
    signature: PackedSignature
    site: Site


@dataclass(frozen=True, slots=True)
class Leaf:
    """One part of a state: ``what`` says its type and size, ``digest`` stands for its content.

    Of a container that is taken apart, ``digest`` stands for its keys in order.
    """

    path: LeafPath
    what: LeafKind
    digest: LeafDigest


# --- worker to tracker ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a worker, on every control connection (rules R1, R13).

    ``incarnation`` is 0 until the tracker has numbered this incarnation; ``nonce`` tells a
    reconnect from a new incarnation.  ``suspects`` are the ranks whose links broke in
    ``plan_epoch``: a suspicion is state, repeated until a newer epoch comes.  ``pid`` and ``start``
    name the process on its host (`ftcomm.config.process_identity`); ``group`` is its process group,
    which its launcher knows.
    ``release`` is the worker's ftcomm.  ``zone`` is what its machine may be lost with.  A ``spare``
    is not counted when the group forms.
    ``job_id`` is empty before the first welcome: a process of an earlier attempt has no part in a
    later one.  ``generation`` and ``tracker`` are those of the newest tracker that this process has
    answered: it follows no older one (rule R19).
    """

    worker_id: Name
    nonce: Nonce
    incarnation: U32
    host: Name
    address: Address
    port: Port
    plan_epoch: U32
    revoke_epoch: U32
    suspects: Ranks
    closed: bool
    tables: Blob
    asked: SettingPairs = ()
    pid: U32 = 0
    start: Ticks = 0
    group: U32 = 0
    release: Name = __version__
    zone: Name = ""
    spare: bool = False
    job_id: Name = ""
    generation: U32 = 0
    tracker: Nonce = b""


@dataclass(frozen=True, slots=True)
class KnownRoster:
    """Knowledge of this worker about its job: answers `AskRoster` (rule R19).

    ``entries`` are the ranks from ``first`` on, as the plan of ``epoch`` names them, the newest
    that it has taken; none for 0.  ``frontier`` is that plan's: what it has was completed by then.
    ``version`` is the highest checkpoint that it has named.  ``lost`` are the addresses of other
    trackers, as ``host:port``: of the one that has welcomed it last, and of those that it has
    answered since then.
    """

    generation: U32
    job_id: Name
    world_size: WorldSize
    settings: SettingPairs
    epoch: U32
    grouping: Ranks
    prelude_length: SeqnoOrNone
    frontier: Position
    version: Version
    lost: Annotated[tuple[Address, ...], AtMost(MAX_TRACKERS_LOST)]
    first: U32
    entries: Annotated[tuple[RosterEntry, ...], AtMost(MAX_ENTRIES)]


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's frozen state, the answer to ``Revoke``; what it lists is pinned.

    ``committed`` is the version of the checkpoint held (-1: none), ``tentative`` that of an
    uncommitted copy (-1: none) with its ``digest``.  ``caught_up`` is the newest epoch whose
    plan this incarnation had fetched everything for (0: none).  ``signature`` is empty outside a
    call. ``prelude_length`` is the seqno of ``load_checkpoint``, -1 while unknown.  ``locals``
    names every version held, committed or tentative, that has local states.  ``messages`` stands
    for the messages of the version that were sent and not taken; over all ranks the sum is 0
    (modulo 2**64) where none is on its way.
    """

    epoch: U32
    position: Position
    committed: Version
    tentative: Version
    digest: Blob
    runs: PositionRanges
    prelude_length: SeqnoOrNone
    caught_up: U32
    suspects: Ranks
    signature: PackedSignature
    site: Prose
    closed: bool
    locals: Annotated[tuple[LocalStates, ...], AtMost(MAX_LOCAL_VERSIONS)] = ()
    messages: U64 = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sign of incarnation; the tracker answers with `HeartbeatAck` of the same number.

    `log_bytes` is what the results kept since the last checkpoint count with (rule R9).
    """

    number: U32
    epoch: U32
    position: Position
    blocked: Blocked | None = None
    log_bytes: LogBytes = 0


@dataclass(frozen=True, slots=True)
class Suspect:
    """Data links to `ranks` broke while `epoch` was running."""

    epoch: U32
    ranks: Ranks
    reason: Prose


@dataclass(frozen=True, slots=True)
class Mismatch:
    """This rank, at ``position``, saw that a peer is in another call.

    ``peer`` is this rank itself where its log has the result of another call.  ``states`` means
    that both call the same ``checkpoint()``, and the digests of their states differ.
    """

    epoch: U32
    position: Position
    signature: PackedSignature
    site: Prose
    peer: Rank
    peer_position: Position
    peer_signature: PackedSignature
    peer_site: Prose
    states: bool = False


@dataclass(frozen=True, slots=True)
class FatalReport:
    """This rank found, at `position`, what ends the job; all are to raise the exception `error`.

    The tracker takes only some names; see `ftcomm_tracker.core.worker_messages`.
    """

    epoch: U32
    position: Position
    error: Name
    cause: Prose


@dataclass(frozen=True, slots=True)
class Calls:
    """The last calls of this process up to ``position``, where it stands: answers `AskCalls`.

    ``loaded`` is the version that it loaded, -1 before it has loaded one.  ``digest`` is that of
    the state that it gives to the next checkpoint, empty if it gives none.
    """

    position: Position
    calls: Annotated[tuple[CallMade, ...], AtMost(MAX_CALLS)]
    loaded: Version
    digest: Blob


@dataclass(frozen=True, slots=True)
class Leaves:
    """The parts of the state that this rank gives to checkpoint ``version``: answers `AskCalls`."""

    version: Version
    leaves: Annotated[tuple[Leaf, ...], AtMost(MAX_LEAVES)]


@dataclass(frozen=True, slots=True)
class Fetched:
    """All fetches of the plan of `epoch` have arrived here."""

    epoch: U32


@dataclass(frozen=True, slots=True)
class Resumed:
    """First collective completed in `epoch`, with what the recovery cost here."""

    epoch: U32
    fetch_ms: U32
    link_ms: U32
    fetched: U32
    replayed: U32


@dataclass(frozen=True, slots=True)
class Closed:
    """This worker's own close() has completed."""

    version: Version


@dataclass(frozen=True, slots=True)
class Leave:
    """This worker has no more part in the job: it has heard `AllClosed`, and answers it.

    Or it ends without having closed: an exception left the ``with`` block.  ``position`` is where
    it was: an error that comes again there comes without progress.
    ``site`` is the line of the script that raised it, empty where that is no error of the script's.
    """

    reason: Prose
    position: Position
    site: Site = ""


# --- tracker to worker ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to `Hello`: the job, this process's number and the job's settings."""

    job_id: Name
    generation: U32
    incarnation: U32
    world_size: WorldSize
    epoch: U32
    settings: SettingPairs
    tracker: Nonce = b""


@dataclass(frozen=True, slots=True)
class AskRoster:
    """A tracker without a journal asks what this worker knows; no older one may be followed.

    ``generation`` is above all that the tracker has seen; ``tracker`` tells it from another one
    that has taken the same.
    """

    generation: U32
    tracker: Nonce


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer to a `Hello` that cannot join; ``error`` is the name of the exception to raise."""

    error: Name
    reason: Prose
    version: Version = -1


@dataclass(frozen=True, slots=True)
class Revoke:
    """The membership is about to change: stop, report for `epoch`."""

    epoch: U32
    reason: Prose


@dataclass(frozen=True, slots=True)
class MemberDelta:
    """Places that differ from those told on this connection before; comes before a `Plan`.

    ``grouping`` is with the first one only, since it never changes in a job.  See `member_deltas`.
    """

    members: Annotated[tuple[Member, ...], AtMost(MAX_WORLD_SIZE)]
    grouping: Ranks = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Decision of the tracker for one member in `epoch` (docs/recovery.md, "The steps").

    ``commit`` is the tentative version that is now committed (-1: none).  ``load`` is the
    checkpoint version that this member must fetch from one of ``load_from`` (-1: none).
    Positions below ``frontier`` are served from the log, at and above it executed by all.
    ``locals`` are the local states of its version that this member must fetch, None: it has none.
    ``routes`` are the pairs of ranks whose links go through a third.
    ``mark`` says that the checkpoint of ``frontier`` is to be written to the store.
    ``grouping`` says which ranks shared a host when the group formed; it never changes in a job.
    It and ``members`` are the same for all: they travel in `MemberDelta` messages before the plan.
    """

    epoch: U32
    rank: RankOrNone
    frontier: Position
    prelude_length: SeqnoOrNone
    commit: Version
    load: Version
    load_from: Ranks
    fetches: Fetches
    locals: Annotated[tuple[LocalFetch, ...], AtMost(MAX_WORLD_SIZE)] | None = None
    routes: Annotated[tuple[Route, ...], AtMost(MAX_ROUTES)] = ()
    mark: bool = False
    members: Annotated[tuple[Member, ...], NOT_SENT] = ()
    grouping: Annotated[Grouping, NOT_SENT] = ()


@dataclass(frozen=True, slots=True)
class Settled:
    """Every member has fetched what the plan of `epoch` gave it: pins may go."""

    epoch: U32


@dataclass(frozen=True, slots=True)
class HeartbeatAck:
    """The tracker has read heartbeat `number` and still counts the sender as a member.

    Number 0 confirms nothing: the tracker has yet to find out whose job this is (rule R19).
    """

    number: U32


@dataclass(frozen=True, slots=True)
class AskCalls:
    """Two ranks call different collectives: which calls has this rank made?

    ``version`` is the checkpoint whose states differ, -1 if that is not the question.
    """

    version: Version


@dataclass(frozen=True, slots=True)
class FatalDecision:
    """Terminal for the job: every rank raises the exception class named by `error`."""

    error: Name
    cause: Prose
    epoch: U32
    position: Position
    rank: RankOrNone


@dataclass(frozen=True, slots=True)
class Fenced:
    """This process's place has been given away."""

    reason: Prose


@dataclass(frozen=True, slots=True)
class AllClosed:
    """All ranks have closed, and that is journalled: stop serving and leave."""

    version: Version


# --- any of these ways ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class More:
    """The first part of a list that does not fit one frame.  See `splitting`.

    It comes before the `Report`, the `FetchRequest` or the `Plan` that ends the list.
    """

    runs: PositionRanges = ()
    fetches: Fetches = ()


WorkerMessage = (
    Hello
    | KnownRoster
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
    | Marked
    | ObjectWritten
    | WriteFailed
    | RestoreFailed
    | NextDigest
    | Prefetched
)
TrackerMessage = (
    Welcome
    | AskRoster
    | Refused
    | Revoke
    | Plan
    | Settled
    | HeartbeatAck
    | AskCalls
    | FatalDecision
    | Fenced
    | AllClosed
    | WriteObjects
    | VersionDurable
    | VersionGivenUp
    | MarkVersion
    | Restore
    | Prefetch
)
ControlMessage = WorkerMessage | TrackerMessage | MemberDelta | OperatorMessage | LinkMessage
Frame = ControlMessage | More  # what one frame carries
