"""Events of the worker core and the effects that it asks of its driver: frozen values."""

from collections.abc import Mapping
from typing import Any

from ftcomm.protocol.durable.store_messages import ObjectOrder, ObjectWritten
from ftcomm.protocol.link_messages import CopyName
from ftcomm.protocol.messages import (
    TrackerMessage,
    WorkerMessage,
)
from ftcomm.protocol.position import PRELUDE, Position, PositionRange
from ftcomm.protocol.spares.prefetch_messages import Prefetch
from ftcomm.protocol.value_classes import dataclass
from ftcomm.recovery.archive.archive import ResultCopy
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.messages.names import Mark
from ftcomm.recovery.recent_calls import NO_CALL, Called

# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attached:
    """A control connection to the tracker is open and authenticated."""


@dataclass(frozen=True, slots=True)
class Detached:
    """The control connection has ended; the driver keeps dialling."""

    reason: str


@dataclass(frozen=True, slots=True)
class Received:
    """A message of the tracker."""

    message: TrackerMessage


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A data link of `epoch` to `rank` broke."""

    epoch: int
    rank: int
    cause: str


@dataclass(frozen=True, slots=True)
class MismatchSeen:
    """A peer's frame carries another signature than this rank's call (rule R7).

    ``position`` is the peer's, None where it is this rank's own.  ``states`` means that the calls
    agree, and the states given to them differ.
    """

    epoch: int
    rank: int
    signature: bytes
    site: str
    position: Position | None = None
    states: bool = False


@dataclass(frozen=True, slots=True)
class FatalFound:
    """This rank found, at `position`, what ends the job: `error` names the exception for all.

    Stale, and dropped, if this rank has moved on; None is wherever it stands.
    """

    error: str
    cause: str
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class ResultFetched:
    """One result of an ordered fetch has arrived whole."""

    epoch: int
    position: Position
    signature: bytes
    value: Any
    nbytes: int = 0
    site: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointFetched:
    """The checkpoint of an ordered load has arrived whole."""

    epoch: int
    version: int
    value: Any


@dataclass(frozen=True, slots=True)
class LocalFetched:
    """The local state of `rank` in `version` has arrived whole."""

    epoch: int
    version: int
    rank: int
    value: Any


@dataclass(frozen=True, slots=True)
class PartsWanted:
    """The user's thread replays a call and needs the parts that the others contribute."""


@dataclass(frozen=True, slots=True)
class PartFetched:
    """The part of `rank` in the call at `position`, meant for this rank, has arrived whole."""

    epoch: int
    position: Position
    rank: int
    value: Any


@dataclass(frozen=True, slots=True)
class PartLost:
    """That part does not come: `rank` holds it no more (`is_gone`), or its link failed."""

    epoch: int
    position: Position
    rank: int
    cause: str
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class CopyFetched:
    """The result of that name has arrived whole from `rank`."""

    epoch: int
    name: CopyName
    rank: int
    copy: ResultCopy


@dataclass(frozen=True, slots=True)
class CopyLost:
    """That result does not come from `rank`: it has none (`is_gone`), or the link failed."""

    epoch: int
    name: CopyName
    rank: int
    cause: str
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class MessagesWanted:
    """The user's thread waits for a message of rank `source`."""

    source: int


@dataclass(frozen=True, slots=True)
class MessagesClaimed:
    """Rank `destination` says what it has of this rank's messages of `version`."""

    epoch: int
    destination: int
    version: int
    marks: tuple[tuple[bytes, Mark], ...]


@dataclass(frozen=True, slots=True)
class MessagesLost:
    """The link by which messages of `source` come has failed."""

    epoch: int
    source: int
    cause: str


@dataclass(frozen=True, slots=True)
class FetchEnded:
    """Everything ordered from `source` has arrived, or not (`failure` says why)."""

    epoch: int
    source: int
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Beat:
    """The control thread read its clock; sent every heartbeat period.

    `record_ms` is not 0 while the user's thread waits for the record of a durable checkpoint.
    `receive` is the receive in which a thread waits for `blocked_peers`; else that is a collective.
    """

    blocked_peers: tuple[int, ...] = ()
    blocked_ms: int = 0
    blocked_step: int = -1
    log_bytes: int = 0
    record_ms: int = 0
    receive: Called = NO_CALL


@dataclass(frozen=True, slots=True)
class OwnCloseDone:
    """The user's close() collective has completed here."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """An exception left the user's ``with`` block; `site` as in `Leave`."""

    reason: str
    site: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """The user's thread has committed a checkpoint, of which the store or the tracker hears.

    If it `is_marked`, it is to be written to the store.
    """

    is_marked: bool


@dataclass(frozen=True, slots=True)
class VersionPacked:
    """The marked `version` is packed: `nbytes` bytes with `digest`."""

    version: int
    value: Any
    nbytes: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class ObjectStored:
    """An object that was ordered is in the store."""

    written: ObjectWritten


@dataclass(frozen=True, slots=True)
class ObjectFailed:
    """`version` could not be packed, or an object of it not be written, again and again.

    ``unusable`` says that this host has not the tracker's store.
    """

    version: int
    reason: str
    unusable: bool = False


@dataclass(frozen=True, slots=True)
class VersionRestored:
    """The checkpoint of `record` was read from the store, and verified.

    ``locals`` are the local states by rank, None if the version has none.  ``prelude`` are the
    prelude's results in order.
    """

    record: int
    version: int
    value: Any
    locals: Mapping[int, Any] | None
    prelude: tuple[tuple[Position, LogEntry], ...]
    prelude_length: int


@dataclass(frozen=True, slots=True)
class RestoreEnded:
    """The checkpoint of `record` could not be read: `reason` says why."""

    record: int
    reason: str


@dataclass(frozen=True, slots=True)
class PrefetchEnded:
    """The fetch `number` has brought checkpoint `version`, or nothing: then `value` is None.

    ``nbytes`` is the size of the packed state, ``own`` a second copy that may be written to.
    ``has_locals`` says that the version has local states, too.
    """

    number: int
    version: int = PRELUDE
    value: Any | None = None
    nbytes: int = 0
    own: Any | None = None
    has_locals: bool = False


# What the links of an epoch bring to one that lags, and what the user's thread wants of others.
FetchEvent = (
    ResultFetched
    | CheckpointFetched
    | LocalFetched
    | FetchEnded
    | PartsWanted
    | PartFetched
    | PartLost
    | CopyFetched
    | CopyLost
    | MessagesWanted
    | MessagesClaimed
    | MessagesLost
)
Event = (
    Attached
    | Detached
    | Received
    | LinkDown
    | MismatchSeen
    | FatalFound
    | Beat
    | OwnCloseDone
    | Leaving
    | CheckpointCommitted
    | VersionPacked
    | ObjectStored
    | ObjectFailed
    | VersionRestored
    | RestoreEnded
    | PrefetchEnded
    | FetchEvent
)

# --- effects ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send to the tracker, if a control connection is open; the core repeats what matters."""

    message: WorkerMessage


@dataclass(frozen=True, slots=True)
class CloseLinks:
    """Shut down every data and fetch link: no byte of the old epoch may be used any more."""


@dataclass(frozen=True, slots=True)
class StartFetch:
    """Fetch checkpoint `load` (-1: none), local states and `runs` from rank `source`, in order.

    The local states are those of the ranks `locals` in version `local_version`.
    """

    epoch: int
    source: int
    load: int
    runs: tuple[PositionRange, ...]
    local_version: int = PRELUDE
    locals: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchParts:
    """Ask each of `ranks` for its part of the call at `position`; it may come much later.

    A rank that was restarted answers when it has made that call again.
    """

    epoch: int
    position: Position
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FetchCopies:
    """Ask `rank` for the results of these names, in order; each may come much later."""

    epoch: int
    rank: int
    names: tuple[CopyName, ...]


@dataclass(frozen=True, slots=True)
class AskForMessages:
    """Ask `source` for all messages of `version` to this rank that follow `marks`, and later ones.

    They come as they are sent. A stream without a mark has not begun to arrive.
    """

    epoch: int
    source: int
    version: int
    marks: tuple[tuple[bytes, Mark], ...]


@dataclass(frozen=True, slots=True)
class Wake:
    """Wake the user's thread: something that it waits for may have changed."""


@dataclass(frozen=True, slots=True)
class Discard:
    """Buffers that the log has released; the driver may use them again."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Hangup:
    """Close the control connection: this process has no more part in the job."""


@dataclass(frozen=True, slots=True)
class Redial:
    """Close the control connection and dial again: this tracker is not followed any more."""


@dataclass(frozen=True, slots=True)
class DescribeState:
    """Send `Leaves` of the packed state `value`, which is given to checkpoint `version`.

    To look at all of it takes as long as packing it did: not on the control thread.
    """

    version: int
    value: Any


@dataclass(frozen=True, slots=True)
class PackVersion:
    """Pack the state `value` of the marked `version`, if it is not packed.

    Then `VersionPacked` follows, or `ObjectFailed`.  Not on the control thread.  The next
    `checkpoint()` of the user waits for it.  ``digest`` is that of the packed state where it is
    known.
    """

    version: int
    value: Any
    digest: bytes


@dataclass(frozen=True, slots=True)
class ObjectWrite:
    """One object to write: `content` is the packed state, a local state, or results by position.

    ``prelude`` names the results.
    """

    order: ObjectOrder
    content: Any
    prelude: tuple[PositionRange, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteVersion:
    """Write objects of the marked `version` to the store, in the background.

    ``nbytes`` and ``digest`` are those of the whole packed state.  Each object ends with
    `ObjectStored` or `ObjectFailed`.
    """

    attempt: int
    version: int
    epoch: int
    nbytes: int
    digest: bytes
    writes: tuple[ObjectWrite, ...]


@dataclass(frozen=True, slots=True)
class StartRestore:
    """Read the checkpoint of the store's `record` in the background; then `VersionRestored`."""

    record: int


@dataclass(frozen=True, slots=True)
class StartPrefetch:
    """Fetch a committed checkpoint from a member in the background; then `PrefetchEnded`.

    It is of the order's version or, if the member has gone on meanwhile, of a later one.
    """

    number: int
    order: Prefetch


Effect = (
    SendControl
    | CloseLinks
    | StartFetch
    | FetchParts
    | FetchCopies
    | AskForMessages
    | Wake
    | Discard
    | Hangup
    | Redial
    | DescribeState
    | PackVersion
    | WriteVersion
    | StartRestore
    | StartPrefetch
)
