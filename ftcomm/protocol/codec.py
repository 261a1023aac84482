"""Control messages as bytes: a 4-byte big-endian length, then msgpack ``[type code, field, ...]``.

Every message has its code in `MESSAGES`; its row in `SCHEMAS`, the fields in order and the bounds
of each, follows from its dataclass.  Codes are never reused; a changed row means a new
`PROTOCOL_VERSION` (see `handshake`).  A frame whose bytes do not fit its row exactly is refused,
and so is everything after it.
"""

import struct

from ftcomm.errors import ProtocolError
from ftcomm.protocol.durable.store_messages import (
    Marked,
    MarkVersion,
    ObjectWritten,
    Restore,
    RestoreFailed,
    VersionDurable,
    VersionGivenUp,
    WriteFailed,
    WriteObjects,
)
from ftcomm.protocol.field_types import MAX_CONTROL_FRAME
from ftcomm.protocol.link_messages import (
    CopyItem,
    CopyRequest,
    FetchEnd,
    FetchItem,
    FetchRequest,
    FetchWait,
    MessageItem,
    MessageRequest,
    PartItem,
    PartRequest,
    Relayed,
    Sharing,
)
from ftcomm.protocol.message_splitting import Joiner, split
from ftcomm.protocol.messages import (
    AllClosed,
    AskCalls,
    AskRoster,
    Calls,
    Closed,
    ControlMessage,
    FatalDecision,
    FatalReport,
    Fenced,
    Fetched,
    Frame,
    Heartbeat,
    HeartbeatAck,
    Hello,
    KnownRoster,
    Leave,
    Leaves,
    MemberDelta,
    Mismatch,
    More,
    Plan,
    Refused,
    Report,
    Resumed,
    Revoke,
    Settled,
    Suspect,
    Welcome,
)
from ftcomm.protocol.msgpack_reader import Plain, Reader, pack
from ftcomm.protocol.operator_messages import (
    DeathNotice,
    DialBack,
    DialedBack,
    Done,
    GivenUpNotice,
    KillOrder,
    KillReply,
    KillRequest,
    LivenessAssertion,
    StatusReply,
    StatusRequest,
    StopRequest,
    SupersededNotice,
    WorkerStatusReply,
    WorkerStatusRequest,
)
from ftcomm.protocol.schema import record_of
from ftcomm.protocol.spares.prefetch_messages import Prefetch, Prefetched

_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size
READ_BYTES = 64 * 1024  # many control messages; a larger one takes several reads

MESSAGES: dict[int, type] = {
    # worker to tracker
    1: Hello,
    2: Report,
    3: Heartbeat,
    4: Suspect,
    5: Mismatch,
    6: Fetched,
    7: Resumed,
    8: Closed,
    9: Leave,
    10: FatalReport,
    11: Calls,
    12: Leaves,
    13: KnownRoster,
    14: Prefetched,
    # tracker to worker
    16: Welcome,
    17: Refused,
    18: Revoke,
    19: Plan,
    20: Settled,
    21: HeartbeatAck,
    22: FatalDecision,
    23: Fenced,
    24: AllClosed,
    25: MemberDelta,
    26: AskCalls,
    27: AskRoster,
    28: Prefetch,
    # operators
    32: StatusRequest,
    33: StatusReply,
    34: StopRequest,
    35: Done,
    36: WorkerStatusRequest,
    37: WorkerStatusReply,
    38: LivenessAssertion,
    39: GivenUpNotice,
    40: DialBack,
    41: DialedBack,
    42: DeathNotice,
    43: KillRequest,
    44: KillReply,
    45: KillOrder,
    46: SupersededNotice,
    # between workers, on a fetch link
    48: FetchRequest,
    49: FetchItem,
    50: FetchEnd,
    # between workers, on a relay link
    51: Relayed,
    # between workers of one host, on a data link
    52: Sharing,
    # between workers, on a fetch link again
    53: FetchWait,
    # between workers, on a part link
    54: PartRequest,
    55: PartItem,
    # between workers, on a link for messages
    56: MessageRequest,
    57: MessageItem,
    # between workers, on a link for copies
    58: CopyRequest,
    59: CopyItem,
    # before a message whose list does not fit its frame
    64: More,
    # durable checkpoints: worker to tracker
    72: Marked,
    73: ObjectWritten,
    74: WriteFailed,
    75: RestoreFailed,
    # durable checkpoints: tracker to worker
    76: WriteObjects,
    77: VersionDurable,
    78: VersionGivenUp,
    79: Restore,
    80: MarkVersion,
}
SCHEMAS = {code: record_of(kind) for code, kind in MESSAGES.items()}
_CODES = {kind: code for code, kind in MESSAGES.items()}


def encode(message: Frame) -> bytes:
    """Encode a frame, or several for a long list; a plan's members go in `member_deltas`.

    Raises:
        ValueError: a field is outside its bounds, or a frame would be too long.
    """
    return b"".join(map(_frame, split(message)))


def _frame(message: Frame) -> bytes:
    code = _CODES[type(message)]
    plain: list[Plain] = [code, *SCHEMAS[code].write(message)]
    body = pack(plain)
    if len(body) > MAX_CONTROL_FRAME:
        raise ValueError(f"{type(message).__name__} of {len(body)} bytes does not fit a frame")
    return _LENGTH.pack(len(body)) + body


def decode_body(body: bytes) -> Frame:
    """Decode the body of one frame; raises ProtocolError."""
    reader = Reader(body)
    length = reader.array_length()
    code = reader.scalar() if length else None
    schema = SCHEMAS.get(code) if type(code) is int else None
    if schema is None:
        raise ProtocolError(f"unknown message type {str(code)[:40]!r}")
    try:
        message: Frame = schema.read_fields(reader, length - 1)
        reader.finish()
    except ProtocolError as error:
        raise ProtocolError(f"malformed {schema.name}: {error.cause}") from None
    return message


def frame_length(
    prefix: bytes | bytearray | memoryview, max_frame: int = MAX_CONTROL_FRAME, at: int = 0
) -> int:
    """Length of the body behind a frame's first 4 bytes, checked before anything is allocated.

    They are those of `prefix` from `at` on.

    For fetch links, where raw bytes follow some messages: read exactly 4 bytes, then exactly
    this many, and give them to `decode_body`.

    Raises:
        ProtocolError: the length is 0 or over the limit.
    """
    (length,) = _LENGTH.unpack_from(prefix, at)
    if not 0 < length <= max_frame:
        raise ProtocolError(f"control frame of {length} bytes, at most {max_frame}")
    return int(length)


class Decoder:
    """Cuts a byte stream into control messages; holds at most one unfinished message.

    The first error sticks: a peer that broke the protocol once is not believed again, and the
    messages that came in the same `feed` as the error are dropped with it.
    """

    def __init__(self, max_frame: int = MAX_CONTROL_FRAME) -> None:
        self._max_frame = max_frame
        self._buffer = bytearray()
        self._joiner = Joiner()
        self._broken: ProtocolError | None = None

    @property
    def pending(self) -> int:
        """Bytes of an unfinished frame; 0 means that the stream may end here."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[ControlMessage]:
        """Take bytes as they arrived, return the messages that they complete.

        Raises:
            ProtocolError: something unknown, malformed or too long; again at every later call.
        """
        if self._broken is not None:
            raise self._broken
        self._buffer += data
        try:
            return self._cut()
        except ProtocolError as error:
            self._broken = error
            self._buffer.clear()
            raise

    def _cut(self) -> list[ControlMessage]:
        messages: list[ControlMessage] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            length = frame_length(self._buffer[start : start + _LENGTH.size], self._max_frame)
            end = start + _LENGTH.size + length
            if end > len(self._buffer):
                break
            frame = decode_body(bytes(self._buffer[start + _LENGTH.size : end]))
            message = self._joiner.take(frame)
            if message is not None:
                messages.append(message)
            start = end
        del self._buffer[:start]
        return messages
