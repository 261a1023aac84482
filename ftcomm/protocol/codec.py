"""Control messages as bytes: a 4-byte big-endian length, then msgpack ``[type code, field, ...]``.

Every message has one row in `SCHEMAS`: its code, its fields in order and the bounds of each.
Codes are never reused; a changed row means a new `PROTOCOL_VERSION` (see `handshake`).  A frame
whose bytes do not fit its row exactly is refused, and so is everything after it.
"""

import struct

from ftcomm.errors import ProtocolError
from ftcomm.protocol.link_messages import Relayed, Sharing
from ftcomm.protocol.message_splitting import RUNS_OF_A_FRAME, Joiner, split
from ftcomm.protocol.messages import (
    AllClosed,
    AskCalls,
    Blocked,
    CallMade,
    Calls,
    Closed,
    ControlMessage,
    FatalDecision,
    FatalReport,
    Fenced,
    Fetch,
    Fetched,
    FetchEnd,
    FetchItem,
    FetchRequest,
    FetchWait,
    Frame,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Leaf,
    Leave,
    Leaves,
    LocalFetch,
    LocalStates,
    Member,
    MemberDelta,
    Mismatch,
    More,
    Plan,
    PositionRange,
    Refused,
    Report,
    Resumed,
    Revoke,
    Route,
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
    WorkerStatusReply,
    WorkerStatusRequest,
)
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.protocol.schema import Bool, Bytes, Int, Many, Maybe, Pair, Record, Text
from ftcomm.protocol.signature import SIGNATURE_BYTES

MAX_WORLD_SIZE = 2048  # ranks; so many are measured (benchmarks/tracker_scale.py)
MAX_CONTROL_FRAME = (
    256 * 1024
)  # bytes; a plan of MAX_WORLD_SIZE ranks, of which each is fetched from
MAX_TEXT = 1024  # bytes; longer prose belongs in a log file
MAX_NAME = 64  # bytes; Linux's own limit of a host name, and ample for a worker id
MAX_ADDRESS = 255  # bytes; a DNS name is at most 253
MAX_PYTHON = 32  # bytes; an implementation's name and a minor version
MAX_BLOB = 4096  # bytes; nonces and digests are 32
MAX_LOCAL_VERSIONS = 2  # a committed and a tentative one
MAX_ROUTES = 1024  # relayed pairs; a job with more has lost its network
MAX_DIMS = 64  # what numpy 2 allows
MAX_CALLS = 65  # the last 64 completed calls and the one in flight
MAX_LEAVES = 512  # parts of a state that are compared one by one; so many fit a frame
MAX_PATH = 200  # bytes; where in a state a part is, in the user's own keys
MAX_ITEM_BYTES = 1 << 40  # one served result; far above any log limit, far below overflow

_LENGTH = struct.Struct(">I")

U32 = Int(0, 2**32 - 1)
VERSION = Int(PRELUDE, 2**31 - 1)  # also -1 for "none"
RANK = Int(0, MAX_WORLD_SIZE - 1)
RANK_OR_NONE = Int(-1, MAX_WORLD_SIZE - 1)
PORT = Int(0, 65535)
USER_PORT = Int(1024, 65535)  # those that a system chooses; services of the host are below
SEQNO_OR_NONE = Int(-1, 2**32 - 1)
TICKS = Int(0, 2**53)  # of the kernel's clock since the machine began
FLAG = Bool()
NAME = Text(MAX_NAME)
ADDRESS = Text(MAX_ADDRESS)
PYTHON = Text(MAX_PYTHON)
TEXT = Text(MAX_TEXT)
PROSE = Text(MAX_TEXT, cut=True)
DOCUMENT = Text(MAX_CONTROL_FRAME - 16)
BLOB = Bytes(MAX_BLOB)
SIGNATURE = Bytes(SIGNATURE_BYTES)
DIGESTS = Bytes(16 * MAX_WORLD_SIZE)
RANKS = Many(RANK, MAX_WORLD_SIZE)
SETTINGS = Many(Pair(TEXT), 64)
POSITION = Record(Position, branch=U32, version=VERSION, seqno=U32)
RUN = Record(PositionRange, version=VERSION, lo=U32, hi=U32, step=Int(1, 2**31 - 1))
RUNS = Many(RUN, RUNS_OF_A_FRAME)
FETCH = Record(Fetch, source=RANK, run=RUN)
FETCHES = Many(FETCH, RUNS_OF_A_FRAME)
LOCAL_STATES = Record(LocalStates, version=VERSION, ranks=RANKS)
LOCAL_FETCH = Record(LocalFetch, source=RANK, rank=RANK)
BLOCKED = Record(
    Blocked,
    signature=SIGNATURE,
    site=PROSE,
    peers=Many(RANK, MAX_WORLD_SIZE),
    blocked_ms=U32,
    step=SEQNO_OR_NONE,
)
ROUTE = Record(Route, a=RANK, b=RANK, via=RANK)
MEMBER = Record(
    Member,
    rank=RANK,
    worker_id=NAME,
    incarnation=U32,
    host=NAME,
    address=ADDRESS,
    port=PORT,
    present=FLAG,
    python=PYTHON,
)

SITE = Text(MAX_ADDRESS, cut=True)
CALL_MADE = Record(CallMade, position=POSITION, signature=SIGNATURE, site=SITE)
LEAF = Record(
    Leaf, path=Text(MAX_PATH, cut=True), what=Text(MAX_NAME, cut=True), digest=Bytes(MAX_NAME)
)

SCHEMAS: dict[int, Record] = {
    # worker to tracker
    1: Record(
        Hello,
        worker_id=NAME,
        nonce=BLOB,
        incarnation=U32,
        host=NAME,
        address=ADDRESS,
        port=PORT,
        plan_epoch=U32,
        revoke_epoch=U32,
        suspects=RANKS,
        closed=FLAG,
        tables=BLOB,
        asked=SETTINGS,
        pid=U32,
        start=TICKS,
        group=U32,
        release=NAME,
        python=PYTHON,
    ),
    2: Record(
        Report,
        epoch=U32,
        position=POSITION,
        committed=VERSION,
        tentative=VERSION,
        digest=BLOB,
        runs=RUNS,
        prelude_length=SEQNO_OR_NONE,
        caught_up=U32,
        suspects=RANKS,
        signature=SIGNATURE,
        site=PROSE,
        closed=FLAG,
        locals=Many(LOCAL_STATES, MAX_LOCAL_VERSIONS),
    ),
    3: Record(
        Heartbeat,
        number=U32,
        epoch=U32,
        position=POSITION,
        blocked=Maybe(BLOCKED),
        log_bytes=Int(0, 2**63 - 1),
    ),
    4: Record(Suspect, epoch=U32, ranks=RANKS, reason=PROSE),
    5: Record(
        Mismatch,
        epoch=U32,
        position=POSITION,
        signature=SIGNATURE,
        site=PROSE,
        peer=RANK,
        peer_position=POSITION,
        peer_signature=SIGNATURE,
        peer_site=PROSE,
        states=FLAG,
    ),
    6: Record(Fetched, epoch=U32),
    7: Record(Resumed, epoch=U32, fetch_ms=U32, link_ms=U32, fetched=U32, replayed=U32),
    8: Record(Closed, version=VERSION),
    9: Record(Leave, reason=PROSE),
    10: Record(FatalReport, epoch=U32, position=POSITION, error=NAME, cause=PROSE),
    11: Record(
        Calls, position=POSITION, calls=Many(CALL_MADE, MAX_CALLS), loaded=VERSION, digest=BLOB
    ),
    12: Record(Leaves, version=VERSION, leaves=Many(LEAF, MAX_LEAVES)),
    # tracker to worker
    16: Record(
        Welcome,
        job_id=NAME,
        generation=U32,
        incarnation=U32,
        world_size=Int(1, MAX_WORLD_SIZE),
        epoch=U32,
        settings=SETTINGS,
    ),
    17: Record(Refused, error=NAME, reason=PROSE, version=VERSION),
    18: Record(Revoke, epoch=U32, reason=PROSE),
    19: Record(
        Plan,
        epoch=U32,
        rank=RANK_OR_NONE,
        frontier=POSITION,
        prelude_length=SEQNO_OR_NONE,
        commit=VERSION,
        load=VERSION,
        load_from=RANKS,
        fetches=FETCHES,
        locals=Maybe(Many(LOCAL_FETCH, MAX_WORLD_SIZE)),
        routes=Many(ROUTE, MAX_ROUTES),
    ),
    20: Record(Settled, epoch=U32),
    21: Record(HeartbeatAck, number=U32),
    22: Record(
        FatalDecision, error=NAME, cause=PROSE, epoch=U32, position=POSITION, rank=RANK_OR_NONE
    ),
    23: Record(Fenced, reason=PROSE),
    24: Record(AllClosed, version=VERSION),
    25: Record(MemberDelta, members=Many(MEMBER, MAX_WORLD_SIZE), grouping=RANKS),
    26: Record(AskCalls, version=VERSION),
    # operators
    32: Record(StatusRequest),
    33: Record(StatusReply, document=DOCUMENT),
    34: Record(StopRequest, reason=PROSE),
    35: Record(Done),
    36: Record(WorkerStatusRequest, number=U32, worker_id=NAME, host=NAME, pid=U32, age_ms=U32),
    37: Record(
        WorkerStatusReply,
        number=U32,
        connected=FLAG,
        missed=FLAG,
        closed=FLAG,
        progress=POSITION,
        state=NAME,
        epoch=U32,
        detect_within_ms=U32,
        over=FLAG,
        error=NAME,
        cause=PROSE,
    ),
    38: Record(LivenessAssertion, worker_id=NAME),
    39: Record(GivenUpNotice, worker_id=NAME, reason=PROSE),
    40: Record(DialBack, port=USER_PORT, nonce=BLOB),
    41: Record(DialedBack, address=ADDRESS, cause=PROSE),
    42: Record(DeathNotice, worker_id=NAME, pid=U32, how=PROSE),
    43: Record(KillRequest, worker_id=NAME),
    44: Record(KillReply, sent=FLAG),
    45: Record(KillOrder, worker_id=NAME),
    # between workers, on a fetch link
    48: Record(
        FetchRequest, epoch=U32, load=VERSION, runs=RUNS, local_version=VERSION, locals=RANKS
    ),
    49: Record(
        FetchItem,
        what=NAME,
        position=POSITION,
        signature=SIGNATURE,
        dtype=Int(0, 255),
        shape=Many(Int(0, MAX_ITEM_BYTES), MAX_DIMS),
        nbytes=Int(0, MAX_ITEM_BYTES),
        rank=RANK_OR_NONE,
        digests=DIGESTS,
    ),
    50: Record(FetchEnd, missing=PROSE),
    # between workers, on a relay link
    51: Record(Relayed, failure=PROSE),
    # between workers of one host, on a data link
    52: Record(Sharing, nonce=BLOB, failure=PROSE),
    # between workers, on a fetch link again
    53: Record(FetchWait),
    # before a message whose list does not fit its frame
    64: Record(More, runs=RUNS, fetches=FETCHES),
}
_CODES = {schema.build: code for code, schema in SCHEMAS.items()}


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
    """What one frame's body carries.

    Raises:
        ProtocolError: it is not exactly one message of `SCHEMAS`.
    """
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


def frame_length(prefix: bytes | bytearray, max_frame: int = MAX_CONTROL_FRAME) -> int:
    """Length of the body behind a frame's first 4 bytes, checked before anything is allocated.

    For fetch links, where raw bytes follow some messages: read exactly 4 bytes, then exactly
    this many, and give them to `decode_body`.

    Raises:
        ProtocolError: the length is 0 or over the limit.
    """
    (length,) = _LENGTH.unpack(prefix)
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
