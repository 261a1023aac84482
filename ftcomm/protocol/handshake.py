"""The handshake with which every connection begins, on both sides, without any I/O.

    client                                   server
    head(role) nonce_c context  ---------->
                                <----------  head(0) nonce_s  HMAC(key, "server" + transcript)
    HMAC(key, "client" + transcript)  ---->
                                <----------  HMAC(key, "accept" + transcript)

The server proves itself first, so that an unauthenticated peer who listens where the tracker should
be learns nothing from a worker.  The transcript is everything sent before the proofs: magic,
version, role, context, both nonces; a changed byte fails the proof.  The three labels differ, so no
tag can be sent back to its maker.  Every read has a size known before it, so not a byte of what
follows the handshake is swallowed.  Nonces come from the caller.

The first 8 bytes of either side (magic, version, role or status, length of what follows) keep
their layout for ever: two versions can always tell each other what they are.  A server that refuses
another version sends its release's name behind them.
"""

import enum
import hashlib
import hmac
import struct
from dataclasses import dataclass

from ftcomm import __version__
from ftcomm.errors import AuthenticationError, ProtocolError, ProtocolVersionError

MAGIC = b"FTC\xf1"  # not ASCII: no text protocol starts like this
PROTOCOL_VERSION = 12
RELEASES = {11: "0.1", 12: "0.2"}  # of ftcomm, by the protocol version that they speak
NONCE_BYTES = 32
HANDSHAKE_DEADLINE_S = 5.0  # a slow round trip is 1 s; five times is not slow
MAX_UNAUTHENTICATED = 64  # connections; at the limit the oldest makes room (rule R9)
TAG_BYTES = hashlib.sha256().digest_size
MAX_CONTEXT = 255  # bytes; its length travels in one
MAX_STREAMS = 16  # connections of one link; clouds need 4 to 8 to fill a host's own limit

ROLES = {
    "worker": 1,
    "operator": 2,
    "data": 3,
    "fetch": 4,
    "relay": 5,
    "segment": 6,
    "prefetch": 7,
    "part": 8,
    "messages": 9,
    "copies": 10,
}
_ROLE_NAMES = {code: name for name, code in ROLES.items()}
_OK, _REFUSED = 0, 1

_HEAD = struct.Struct(">4sHBB")
_CONTEXT = struct.Struct(">IHHIIBB")


@dataclass(frozen=True, slots=True)
class HandshakeRequest:
    """Identity that the client claims, not yet proven."""

    role: str
    context: bytes


@dataclass(frozen=True, slots=True)
class DataContext:
    """Context of connections between workers: which link of which epoch (rule R1).

    Of a relay `to_rank` is the rank to which it shall pass the bytes on.

    It only picks the key and names the link; the proof covers it, so it cannot be altered.
    """

    job_id: str
    epoch: int
    from_rank: int
    to_rank: int
    incarnation: int
    # Of a link of several connections, which of the dialler's attempts this one is of. A later one
    # has a higher number.
    attempt: int = 0
    stream: int = 0  # which of them this is
    streams: int = 1  # how many there are

    def encode(self) -> bytes:
        """The context bytes of the client's hello; raises ValueError."""
        ends = (self.from_rank, self.to_rank, self.incarnation)
        try:
            numbers = _CONTEXT.pack(self.epoch, *ends, self.attempt, self.stream, self.streams)
        except struct.error as error:
            raise ValueError(f"{self}: {error}") from None
        raw = numbers + self.job_id.encode()
        if len(raw) > MAX_CONTEXT:
            raise ValueError(f"job id of {len(self.job_id)} characters is too long")
        return raw

    @classmethod
    def decode(cls, raw: bytes) -> "DataContext":
        """Parse a client's context.

        Raises:
            ProtocolError: too short, no such stream, or the job id is not text.
        """
        if len(raw) < _CONTEXT.size:
            raise ProtocolError(f"data link context of {len(raw)} bytes")
        fields = _CONTEXT.unpack_from(raw)
        *_, stream, streams = fields
        if not stream < streams <= MAX_STREAMS:
            raise ProtocolError(f"data link context of stream {stream} of {streams}")
        try:
            job_id = raw[_CONTEXT.size :].decode()
        except UnicodeDecodeError:
            raise ProtocolError("data link context whose job id is not text") from None
        return cls(job_id, *fields)


def control_key(token: bytes) -> bytes:
    """Key of connections to the tracker."""
    return _mac(token, b"ftcomm control key")


def epoch_key(token: bytes, job_id: str, epoch: int) -> bytes:
    """Key of links between workers in one epoch: who has not its plan's epoch cannot connect."""
    return _mac(token, b"ftcomm epoch key", epoch.to_bytes(4, "big"), job_id.encode())


def prefetch_key(token: bytes, job_id: str) -> bytes:
    """Key of a spare's connections to members: it has no epoch yet, and the job is one attempt."""
    return _mac(token, b"ftcomm prefetch key", job_id.encode())


class _Phase(enum.Enum):
    HEAD = "head"
    BODY = "body"
    KEY = "key"  # server only: waits for use_key
    PROOF = "proof"
    FAREWELL = "farewell"  # client only: another version refuses and says its release
    DONE = "done"
    FAILED = "failed"


class _Side:
    """Common state of both sides: the phase, the bytes due, and the first failure, if any."""

    def __init__(self, nonce: bytes) -> None:
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"nonce of {len(nonce)} bytes, {NONCE_BYTES} needed")
        self._nonce = nonce
        self._phase = _Phase.HEAD
        self._wanted = _HEAD.size

    @property
    def bytes_wanted(self) -> int:
        """Exact number of bytes that `receive` needs next; 0 when none are due."""
        return self._wanted

    @property
    def done(self) -> bool:
        """Both sides are proven and everything is sent and received."""
        return self._phase is _Phase.DONE

    def receive(self, data: bytes | bytearray | memoryview) -> bytes:
        """Take exactly `bytes_wanted` bytes; return what to send now, maybe nothing.

        Raises:
            AuthenticationError: the other side does not hold the key.
            ProtocolVersionError: the other side speaks another version.
            ProtocolError: the bytes are no handshake.
            ValueError: a defect of the caller: not `bytes_wanted` bytes, or called after the end.
        """
        raw = bytes(data)
        if not self._wanted or len(raw) != self._wanted:
            raise ValueError(f"{len(raw)} bytes given, {self._wanted} wanted")
        before = self._phase
        self._move(_Phase.FAILED, 0)  # stays, unless the step below ends well
        return self._step(before, raw)

    def _step(self, phase: _Phase, raw: bytes) -> bytes:
        raise NotImplementedError

    def _move(self, phase: _Phase, wanted: int) -> None:
        self._phase = phase
        self._wanted = wanted


class ClientHandshake(_Side):
    """The side that dialled.

    Args:
        key: `control_key` or `epoch_key`.
        role: a key of `ROLES`.
        context: at most 255 bytes that the server needs to choose its key.
        nonce: 32 fresh random bytes.
    """

    def __init__(self, key: bytes, *, role: str, context: bytes, nonce: bytes) -> None:
        super().__init__(nonce)
        if len(context) > MAX_CONTEXT:
            raise ValueError(f"context of {len(context)} bytes, at most {MAX_CONTEXT}")
        self._key = key
        head = _HEAD.pack(MAGIC, PROTOCOL_VERSION, ROLES[role], len(context))
        self._hello = head + nonce + context
        self._server_head = b""
        self._server_version = PROTOCOL_VERSION
        self._transcript = b""

    def hello(self) -> bytes:
        """Return the first bytes to send."""
        return self._hello

    def _step(self, phase: _Phase, raw: bytes) -> bytes:
        if phase is _Phase.HEAD:
            return self._on_head(raw)
        if phase is _Phase.FAREWELL:
            raise _another_version("server", self._server_version, raw)
        if phase is _Phase.BODY:
            return self._on_server_proof(raw[:NONCE_BYTES], raw[NONCE_BYTES:])
        if not _same(raw, _tag(self._key, b"accept", self._transcript)):
            raise AuthenticationError("the server's acceptance is not genuine")
        self._move(_Phase.DONE, 0)
        return b""

    def _on_head(self, raw: bytes) -> bytes:
        self._server_version, status, length = _read_head(raw, "server")
        if self._server_version != PROTOCOL_VERSION:
            if status != _REFUSED or not length:
                raise _another_version("server", self._server_version)
            self._move(_Phase.FAREWELL, length)
            return b""
        if status != _OK or length:
            raise ProtocolError(f"server answered with status {status}, length {length}")
        self._server_head = raw
        self._move(_Phase.BODY, NONCE_BYTES + TAG_BYTES)
        return b""

    def _on_server_proof(self, nonce: bytes, tag: bytes) -> bytes:
        self._transcript = _transcript(self._hello, self._server_head, nonce)
        if not _same(tag, _tag(self._key, b"server", self._transcript)):
            raise _refusal(self._key)
        self._move(_Phase.PROOF, TAG_BYTES)
        return _tag(self._key, b"client", self._transcript)


def _refusal(key: bytes) -> AuthenticationError:
    """Explain why the server's proof does not fit `key`, as far as that is known here."""
    if key == control_key(b""):
        return AuthenticationError(
            "the server holds a token, and this process was given no token file",
            remedy="name the job's token file: FTCOMM_TOKEN_FILE, or --token-file of a command",
        )
    return AuthenticationError(
        "the server does not hold this job's token, or this process does not"
    )


class ServerHandshake(_Side):
    """The side that listened.

    Args:
        nonce: 32 fresh random bytes.
    """

    def __init__(self, nonce: bytes) -> None:
        super().__init__(nonce)
        # What the client claims, once its hello is in; then `use_key` is due.
        self.request: HandshakeRequest | None = None
        # What to send before closing after an error; empty for all but a version difference, since
        # an unauthenticated peer is told nothing.
        self.farewell = b""
        self._key = b""
        self._client_head = b""
        self._role = ""
        self._transcript = b""

    def use_key(self, key: bytes) -> bytes:
        """Choose the key that fits `request`; returns the server's proof, to be sent.

        Raises:
            ValueError: a defect of the caller: no key is due.
        """
        if self._phase is not _Phase.KEY:
            raise ValueError("no key is due")
        self._key = key
        self._move(_Phase.PROOF, TAG_BYTES)
        return self._head(_OK) + self._nonce + _tag(key, b"server", self._transcript)

    def _step(self, phase: _Phase, raw: bytes) -> bytes:
        if phase is _Phase.HEAD:
            return self._on_head(raw)
        if phase is _Phase.BODY:
            return self._on_hello(raw)
        if not _same(raw, _tag(self._key, b"client", self._transcript)):
            raise AuthenticationError("the client does not hold this job's token")
        self._move(_Phase.DONE, 0)
        return _tag(self._key, b"accept", self._transcript)

    def _on_head(self, raw: bytes) -> bytes:
        version, code, length = _read_head(raw, "client")
        if version != PROTOCOL_VERSION:
            release = __version__.encode()
            self.farewell = self._head(_REFUSED, len(release)) + release
            raise _another_version("client", version)
        if code not in _ROLE_NAMES:
            raise ProtocolError(f"client with unknown role {code}")
        self._role = _ROLE_NAMES[code]
        self._client_head = raw
        self._move(_Phase.BODY, NONCE_BYTES + length)
        return b""

    def _on_hello(self, raw: bytes) -> bytes:
        self.request = HandshakeRequest(self._role, raw[NONCE_BYTES:])
        self._transcript = _transcript(self._client_head + raw, self._head(_OK), self._nonce)
        self._move(_Phase.KEY, 0)
        return b""

    def _head(self, status: int, length: int = 0) -> bytes:
        return _HEAD.pack(MAGIC, PROTOCOL_VERSION, status, length)


def _read_head(raw: bytes, whose: str) -> tuple[int, int, int]:
    """Version, role or status, and length of what follows, of a head in any version."""
    magic, version, code, length = _HEAD.unpack(raw)
    if magic != MAGIC:
        raise ProtocolError(f"{whose} does not speak ftcomm: it began with {raw!r}")
    return version, code, length


def _another_version(whose: str, version: int, release: bytes = b"") -> ProtocolVersionError:
    """The refusal of another version, which names both; `release` is what the other calls its own.

    That is unproven, and only shown.
    """
    text = "".join(c for c in release.decode("ascii", "ignore") if c.isprintable())
    return ProtocolVersionError(
        f"the {whose} is {release_of(version, text)}, which speaks protocol version {version}; this"
        f" side is ftcomm {__version__}, which speaks version {PROTOCOL_VERSION}"
    )


def release_of(version: int, name: str = "") -> str:
    """Name the ftcomm release of a protocol version; `name` is the peer's own name, if received."""
    if name or version in RELEASES:
        return f"ftcomm {name or RELEASES[version]}"
    if version > max(RELEASES):
        return f"a release of ftcomm after {RELEASES[max(RELEASES)]}"
    return f"a release of ftcomm before {RELEASES[min(RELEASES)]}"


def _transcript(hello: bytes, server_head: bytes, server_nonce: bytes) -> bytes:
    """All that was said before the proofs; unambiguous, since the hello says its own length."""
    return hello + server_head + server_nonce


def _tag(key: bytes, label: bytes, transcript: bytes) -> bytes:
    return _mac(key, b"ftcomm handshake", label, transcript)


def _mac(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 over length-prefixed parts, so that no two lists of parts look alike."""
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(4, "big"))
        mac.update(part)
    return mac.digest()


def _same(given: bytes, expected: bytes) -> bool:
    return hmac.compare_digest(given, expected)
