"""Control messages as bytes: a 4-byte big-endian length, then msgpack ``[type code, field, ...]``.

Every message has its code in `MESSAGES`; its row in `SCHEMAS`, the fields in order and the bounds
of each, follows from its dataclass.  Codes are never reused; a changed row means a new
`PROTOCOL_VERSION` (see `handshake`).  A frame whose bytes do not fit its row exactly is refused,
and so is everything after it.
"""

import struct

from ftcomm.errors import ProtocolError
from ftcomm.protocol import link_messages, messages, operator_messages
from ftcomm.protocol.durable import store_messages
from ftcomm.protocol.field_types import MAX_CONTROL_FRAME
from ftcomm.protocol.message_splitting import Joiner, split
from ftcomm.protocol.messages import ControlMessage, Frame
from ftcomm.protocol.msgpack_reader import Plain, Reader, pack
from ftcomm.protocol.schema import record_of
from ftcomm.protocol.spares import prefetch_messages

_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size
READ_BYTES = 64 * 1024  # many control messages; a larger one takes several reads

MESSAGES: dict[int, type] = {
    # worker to tracker
    1: messages.Hello,
    2: messages.Report,
    3: messages.Heartbeat,
    4: messages.Suspect,
    5: messages.Mismatch,
    6: messages.Fetched,
    7: messages.Resumed,
    8: messages.Closed,
    9: messages.Leave,
    10: messages.FatalReport,
    11: messages.Calls,
    12: messages.Leaves,
    13: messages.KnownRoster,
    14: prefetch_messages.Prefetched,
    # tracker to worker
    16: messages.Welcome,
    17: messages.Refused,
    18: messages.Revoke,
    19: messages.Plan,
    20: messages.Settled,
    21: messages.HeartbeatAck,
    22: messages.FatalDecision,
    23: messages.Fenced,
    24: messages.AllClosed,
    25: messages.MemberDelta,
    26: messages.AskCalls,
    27: messages.AskRoster,
    28: prefetch_messages.Prefetch,
    # operators
    32: operator_messages.StatusRequest,
    33: operator_messages.StatusReply,
    34: operator_messages.StopRequest,
    35: operator_messages.Done,
    36: operator_messages.WorkerStatusRequest,
    37: operator_messages.WorkerStatusReply,
    38: operator_messages.LivenessAssertion,
    39: operator_messages.GivenUpNotice,
    40: operator_messages.DialBack,
    41: operator_messages.DialedBack,
    42: operator_messages.DeathNotice,
    43: operator_messages.KillRequest,
    44: operator_messages.KillReply,
    45: operator_messages.KillOrder,
    46: operator_messages.SupersededNotice,
    # between workers, on a fetch link
    48: link_messages.FetchRequest,
    49: link_messages.FetchItem,
    50: link_messages.FetchEnd,
    # between workers, on a relay link
    51: link_messages.Relayed,
    # between workers of one host, on a data link
    52: link_messages.Sharing,
    # between workers, on a fetch link again
    53: link_messages.FetchWait,
    # between workers, on a part link
    54: link_messages.PartRequest,
    55: link_messages.PartItem,
    # between workers, on a link for messages
    56: link_messages.MessageRequest,
    # between workers, on a link for copies
    58: link_messages.CopyRequest,
    59: link_messages.CopyItem,
    # before a message whose list does not fit its frame
    64: messages.More,
    # durable checkpoints: worker to tracker
    72: store_messages.Marked,
    73: store_messages.ObjectWritten,
    74: store_messages.WriteFailed,
    75: store_messages.RestoreFailed,
    81: store_messages.NextDigest,
    # durable checkpoints: tracker to worker
    76: store_messages.WriteObjects,
    77: store_messages.VersionDurable,
    78: store_messages.VersionGivenUp,
    79: store_messages.Restore,
    80: store_messages.MarkVersion,
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

    def __init__(self) -> None:
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
        whole: list[ControlMessage] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            length = frame_length(self._buffer[start : start + _LENGTH.size])
            end = start + _LENGTH.size + length
            if end > len(self._buffer):
                break
            frame = decode_body(bytes(self._buffer[start + _LENGTH.size : end]))
            message = self._joiner.take(frame)
            if message is not None:
                whole.append(message)
            start = end
        del self._buffer[:start]
        return whole
