"""Signature: what all ranks must agree on before a collective may run (rule R7).

A signature is a fixed 48-byte record, small enough to travel in every data frame, so that a
mismatch is seen without an extra round trip and both sides can be named in the error.  The call
site travels beside it and is not part of the comparison.
"""

import enum
import hashlib
import math
import operator
import struct
from dataclasses import dataclass

from ftcomm.errors import ProtocolError

SIGNATURE_BYTES = 48
SITE_BYTES = 24
_DTYPE_AT, _WIRE_AT, _TAG_AT = 2, 7, 40  # of the 48 bytes
_LOG_SHIFT = 4  # the byte of the wire format has the log mode in its upper half
MAX_NAMED_DIMS = 4  # more dimensions are compared by digest and shown as a number
USUAL_CAUSE = (  # of a process that differs from its earlier one
    "the usual cause is a variable, an optimizer or a random generator that is not in the"
    " checkpoint: add it to the state"
)

_LAYOUT = struct.Struct("<BBBBhBBQ4IQQ")
assert _LAYOUT.size == SIGNATURE_BYTES


class Kind(enum.IntEnum):
    """Kind of collective; the value is on the wire, so numbers are never reused."""

    ALLREDUCE = 1
    BROADCAST = 2
    ALLGATHER = 3
    BARRIER = 4
    CHECKPOINT = 5
    LOAD = 6
    CLOSE = 7
    ALLGATHERV = 8
    REDUCE = 9
    GATHER = 10
    GATHERV = 11
    SCATTER = 12
    BROADCAST_OBJECT = 13
    ALLGATHER_OBJECT = 14
    ALLTOALL = 16
    REDUCE_SCATTER = 17
    ALLTOALLV = 18
    SCATTERV = 19
    SCATTER_OBJECT = 20
    GATHER_OBJECT = 21
    SEND = 22
    RECV = 23


# Kinds to which each rank brings as many rows as it has: the first dimension is not compared.
RAGGED = (Kind.ALLGATHERV, Kind.GATHERV, Kind.ALLTOALLV)
# Kinds that give each rank a result of its own, so that the log may have something else instead.
RANK_LOCAL = (
    Kind.REDUCE,
    Kind.GATHER,
    Kind.GATHERV,
    Kind.GATHER_OBJECT,
    Kind.SCATTER,
    Kind.SCATTERV,
    Kind.SCATTER_OBJECT,
    Kind.REDUCE_SCATTER,
    Kind.ALLTOALL,
    Kind.ALLTOALLV,
)


class OpCode(enum.IntEnum):
    """Reduction; NONE where the kind reduces nothing, FUNCTION for a user's own."""

    NONE = 0
    SUM = 1
    PROD = 2
    MIN = 3
    MAX = 4
    MEAN = 5
    BAND = 6
    BOR = 7
    BXOR = 8
    LAND = 9
    LOR = 10
    FUNCTION = 11


class Algorithm(enum.IntEnum):
    """Schedule family; AUTO means that constants decide."""

    AUTO = 0
    RING = 1
    RECURSIVE_DOUBLING = 2
    TREE = 3
    CHAIN = 5
    PAIRWISE = 7
    DIRECT = 8


class Wire(enum.IntEnum):
    """Format of elements on the wire; SAME keeps the dtype, the others name the rounded format."""

    SAME = 0
    BF16 = 1


class LogMode(enum.IntEnum):
    """Content of the log for the replay of a call (rule R20)."""

    WHOLE = 0  # the result, alike on all ranks
    CONTRIBUTIONS = 1  # on each rank its own input, and the digests of all ranks' inputs
    COPIES = 3  # of each rank's result copies at other ranks, and the digests of all results
    BY_SIZE = 2  # of a call whose ranks tell each other their sizes first; no log entry has it


class Scalar(enum.IntEnum):
    """The type of a broadcast value without dimensions, which every rank gets."""

    ARRAY = 0
    PYTHON = 1
    NUMPY = 2


_SCALAR_TEXTS = {
    Scalar.ARRAY: "an array",
    Scalar.PYTHON: "a Python number",
    Scalar.NUMPY: "a numpy scalar",
}

# Wire code -> numpy name. Codes are never reused.
DTYPE_NAMES: dict[int, str] = {
    0: "none",
    1: "bool",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "uint8",
    7: "uint16",
    8: "uint32",
    9: "uint64",
    10: "float16",
    11: "float32",
    12: "float64",
    13: "complex64",
    14: "complex128",
    15: "bfloat16",  # of the package ml_dtypes; numpy has none
}


Tag = int | str
CallTag = Tag | None  # of a collective, which needs none
NO_TAG = 0
_TAG_BYTES = 8
# Kinds of tags, in the first of 8 bytes; a text's kind has its length added.
_NUMBER, _DIGEST, _TEXT = 1, 2, 16
_TAG_ROOM = _TAG_BYTES - 1

WITH_LOCAL, LAZY, DURABLE = 1, 2, 4  # in the count of a checkpoint's signature
_OF_CHECKPOINTS = {WITH_LOCAL: "with a local state", LAZY: "lazy", DURABLE: "durable"}


@dataclass(frozen=True, slots=True)
class Signature:
    """Description of the collective that one rank calls."""

    kind: Kind  # the collective
    op: OpCode = OpCode.NONE  # the reduction, ``OpCode.NONE`` where there is none
    dtype: int = 0  # key of `DTYPE_NAMES`
    algorithm: Algorithm = Algorithm.AUTO  # the caller's override, ``Algorithm.AUTO`` without one
    root: int = -1  # the root rank, -1 where the kind has none
    count: int = 0  # number of elements; also kept for shapes too deep to name
    ndim: int = 0  # number of dimensions
    # The shape's dimensions, or a digest of it when it does not fit; of the `RAGGED` kinds those
    # behind the first; of a broadcast without dimensions first the `Scalar`.
    dims: tuple[int, int, int, int] = (0, 0, 0, 0)
    # First 8 bytes of a digest of a user function's declaration, or of the counts that the caller
    # gives, or both; else 0.
    op_hash: int = 0
    wire: Wire = Wire.SAME  # what elements of `dtype` are rounded to for this call
    log: LogMode = LogMode.WHOLE  # what is kept of the call
    tag: int = NO_TAG  # the caller's, as a code; see `tag_code`

    def encode(self) -> bytes:
        """The 48 wire bytes; two signatures agree iff these are equal."""
        return _LAYOUT.pack(
            self.kind,
            self.op,
            self.dtype,
            self.algorithm,
            self.root,
            self.ndim,
            self.wire | self.log << _LOG_SHIFT,
            self.count,
            *self.dims,
            self.op_hash,
            self.tag,
        )

    @classmethod
    def decode(cls, raw: bytes) -> "Signature":
        """Parse 48 bytes from a peer.

        Raises:
            ProtocolError: wrong length, or a code that this version does not know.
        """
        if len(raw) != SIGNATURE_BYTES:
            raise ProtocolError(f"signature of {len(raw)} bytes, expected {SIGNATURE_BYTES}")
        kind, op, dtype, algorithm, root, ndim, ways, count, *more = _LAYOUT.unpack(raw)
        *dims, op_hash, tag = more
        log, wire = divmod(ways, 1 << _LOG_SHIFT)
        if dtype not in DTYPE_NAMES:
            raise ProtocolError(f"signature with unknown dtype code {dtype}")
        try:
            signature = cls(
                Kind(kind),
                OpCode(op),
                dtype,
                Algorithm(algorithm),
                root,
                count,
                ndim,
                (dims[0], dims[1], dims[2], dims[3]),
                op_hash,
                Wire(wire),
                LogMode(log),
                tag,
            )
            _ = signature.scalar
        except ValueError as error:
            raise ProtocolError(f"signature with an unknown code: {error}") from None
        return signature

    @property
    def scalar(self) -> Scalar:
        """The type of a broadcast value without dimensions; an array for every other call."""
        if self.kind is not Kind.BROADCAST or self.ndim:
            return Scalar.ARRAY
        return Scalar(self.dims[0])

    def __str__(self) -> str:
        parts = []
        if self.op is not OpCode.NONE:
            name = self.op.name.lower()
            parts.append(
                f"op={name}#{self.op_hash:x}" if self.op is OpCode.FUNCTION else f"op={name}"
            )
        if self.kind is Kind.CHECKPOINT:
            parts += [text for bit, text in _OF_CHECKPOINTS.items() if self.count & bit]
        if self.dtype:
            shown = f"{DTYPE_NAMES[self.dtype]}{self.shape_text()}"
            as_scalar = f" as {_SCALAR_TEXTS[self.scalar]}" if self.scalar else ""
            parts.append(shown + as_scalar)
        if self.root >= 0:
            parts.append(f"{'source' if self.kind is Kind.RECV else 'root'}={self.root}")
        if self.algorithm is not Algorithm.AUTO:
            parts.append(f"algorithm={self.algorithm.name.lower()}")
        if self.wire is not Wire.SAME:
            parts.append(f"wire={self.wire.name.lower()}")
        if self.log in (LogMode.CONTRIBUTIONS, LogMode.COPIES):
            parts.append(f"log={self.log.name.lower()}")
        if self.tag != NO_TAG:
            parts.append(f"tag={tag_text(self.tag)}")
        return f"{self.kind.name.lower()}({', '.join(parts)})"

    def shape_text(self) -> str:
        """The shape, as far as the signature has it."""
        if self.ndim > MAX_NAMED_DIMS:
            return f"[{self.count} elements, {self.ndim} dimensions]"
        if self.kind in RAGGED:
            return "[" + ",".join(["any", *(str(d) for d in self.dims[: self.ndim - 1])]) + "]"
        return "[" + ",".join(str(d) for d in self.dims[: self.ndim]) + "]"


def is_receive(raw: bytes) -> bool:
    """True of the wire bytes of a receive: it has no place among the collectives."""
    return raw[:1] == bytes([Kind.RECV])


def site_with_function(site: str, function: str) -> str:
    """A call site in words, with the label of the function that the call reduces by."""
    return f"{site} (op {function})"


def function_of_site(site: str) -> str:
    """The label that `site_with_function` added; empty without a whole and printable one."""
    _, found, label = site.partition(" (op ")
    is_whole = bool(found) and label.endswith(")") and label.isascii() and label.isprintable()
    return label[:-1] if is_whole else ""


def differing_fields(one: bytes, other: bytes, sites: tuple[str, str] = ("", "")) -> str:
    """In what two signatures of one kind differ, for messages; empty if the kinds differ."""
    try:
        ours, theirs = Signature.decode(one), Signature.decode(other)
    except ProtocolError:
        return ""
    if ours.kind is not theirs.kind:
        return ""
    pairs = [
        ("op", *_op_texts((ours, theirs), sites)),
        ("dtype", DTYPE_NAMES[ours.dtype], DTYPE_NAMES[theirs.dtype]),
        ("root", str(ours.root), str(theirs.root)),
        ("algorithm", ours.algorithm.name.lower(), theirs.algorithm.name.lower()),
        ("wire", ours.wire.name.lower(), theirs.wire.name.lower()),
        ("log", ours.log.name.lower(), theirs.log.name.lower()),
        ("shape", ours.shape_text(), theirs.shape_text()),
        ("type", _SCALAR_TEXTS[ours.scalar], _SCALAR_TEXTS[theirs.scalar]),
        ("counts", *_counts_texts((ours, theirs))),
        ("tag", tag_text(ours.tag), tag_text(theirs.tag)),
    ]
    return ", ".join(f"{name}: {a} and {b}" for name, a, b in pairs if a != b)


def _counts_texts(signatures: tuple[Signature, Signature]) -> list[str]:
    """Digests of the rows of all ranks; empty where one is mixed with that of a function."""
    if OpCode.FUNCTION in (signatures[0].op, signatures[1].op):
        return ["", ""]
    none = "none given, or equal ones"
    return [f"#{each.op_hash:x}" if each.op_hash else none for each in signatures]


def _op_texts(signatures: tuple[Signature, Signature], sites: tuple[str, str]) -> list[str]:
    """The ops of two calls, with hashes only where the labels do not tell them apart."""
    one, other = signatures
    labels = [function_of_site(site) for site in sites]
    needs_hash = one.op_hash != other.op_hash and labels[0] == labels[1]
    texts = []
    for signature, label in zip(signatures, labels, strict=True):
        text = signature.op.name.lower()
        if signature.op is OpCode.FUNCTION:
            name = f"{text} {label}".rstrip()
            text = f"{name} #{signature.op_hash:x}" if needs_hash or not label else name
        texts.append(text)
    return texts


def is_compatible(known: bytes, whole: bytes) -> bool:
    """Tell whether `whole` may be the signature of which only `known` is known so far.

    Kind, reduction, algorithm, wire, root and tag are known, and the log if the caller has chosen
    it; what follows from the input is not.
    """
    one, other = Signature.decode(known), Signature.decode(whole)
    logs = {one.log, other.log}
    if len(logs) > 1 and (LogMode.BY_SIZE not in logs or LogMode.COPIES in logs):
        return False  # copies are never the choice of the size
    return (one.wire, one.kind, one.op, one.op_hash, one.algorithm, one.root, one.tag) == (
        other.wire,
        other.kind,
        other.op,
        other.op_hash,
        other.algorithm,
        other.root,
        other.tag,
    )


def with_tag(raw: bytes, tag: int) -> bytes:
    """The same signature with a caller's tag."""
    return raw[:_TAG_AT] + tag.to_bytes(SIGNATURE_BYTES - _TAG_AT, "little")


def logged_as(raw: bytes) -> tuple[bytes, ...]:
    """The signatures that the log entry of a call may have, of the one that its frames have."""
    if _log_of(raw) != LogMode.BY_SIZE:
        return (raw,)
    wire = raw[_WIRE_AT] & (1 << _LOG_SHIFT) - 1
    return tuple(
        raw[:_WIRE_AT] + bytes([wire | mode << _LOG_SHIFT]) + raw[_WIRE_AT + 1 :]
        for mode in (LogMode.WHOLE, LogMode.CONTRIBUTIONS)
    )


def is_contributed(raw: bytes) -> bool:
    """Tell whether these are the 48 bytes of a call of which each rank keeps its own input."""
    return _log_of(raw) == LogMode.CONTRIBUTIONS


def is_copied(raw: bytes) -> bool:
    """Tell whether these are the 48 bytes of a call of which others keep each rank's result."""
    return _log_of(raw) == LogMode.COPIES


def _log_of(raw: bytes) -> int:
    """The code of the log; whole for what is no signature."""
    return raw[_WIRE_AT] >> _LOG_SHIFT if len(raw) == SIGNATURE_BYTES else LogMode.WHOLE


def is_open(raw: bytes) -> bool:
    """Tell whether these are the 48 bytes of a rank that receives a broadcast's dtype and shape."""
    return len(raw) == SIGNATURE_BYTES and raw[0] == Kind.BROADCAST and raw[_DTYPE_AT] == 0


def scalar_of(raw: bytes) -> Scalar:
    """The type that a result with this signature has where it has no dimensions.

    Raises:
        ProtocolError: a broadcast's signature with a code that this version does not know.
    """
    if raw[:1] != bytes([Kind.BROADCAST]):
        return Scalar.ARRAY
    return Signature.decode(raw).scalar


def agree(one: bytes, other: bytes) -> bool:
    """Tell whether two ranks call the same collective: equal bytes where both know all of them.

    A rank that replays a call knows which log was chosen by size, one that executes it does not.
    """
    if one == other or other in logged_as(one) or one in logged_as(other):
        return True
    if not (is_open(one) or is_open(other)):
        return False
    try:
        return is_compatible(one, other)
    except ProtocolError:  # of a rank that says nonsense
        return False


def named_shape(signature: Signature) -> tuple[int, ...] | None:
    """The shape of a whole array as `signature` names it; None where it has only a digest of it."""
    shape = signature.dims[: signature.ndim]
    whole = signature.ndim <= MAX_NAMED_DIMS and math.prod(shape) == signature.count
    return shape if whole else None


def signature_text(raw: bytes) -> str:
    """A readable form of wire bytes that never raises: for messages about bad peers."""
    try:
        return str(Signature.decode(raw))
    except ProtocolError:
        return f"undecodable signature {raw.hex()}"


def tag_code(tag: CallTag) -> int:
    """The code of a user's tag; `NO_TAG` for None. An int is never the same as a str.

    Short texts and most numbers stand there as they are, so that messages can name them; of all
    others there is a digest.

    Raises:
        TypeError: it is neither.
    """
    if tag is None:
        return NO_TAG
    if isinstance(tag, str):
        raw = tag.encode(errors="surrogatepass")
        return _tag(_TEXT + len(raw), raw) if len(raw) <= _TAG_ROOM else _tag_of_digest(b"s" + raw)
    try:
        number = operator.index(tag)
    except TypeError:
        raise TypeError(f"tag must be an int or a str, not {type(tag).__name__}") from None
    try:
        return _tag(_NUMBER, number.to_bytes(_TAG_ROOM, "little", signed=True))
    except OverflowError:
        sign, size = b"-" if number < 0 else b"+", number.bit_length() // 8 + 1
        return _tag_of_digest(b"i" + sign + abs(number).to_bytes(size, "little"))


def tag_text(code: int) -> str:
    """A tag in words, of any code: of one that has only a digest, the digest."""
    kind, *rest = code.to_bytes(_TAG_BYTES, "little")
    raw = bytes(rest)
    if kind == _NUMBER:
        return str(int.from_bytes(raw, "little", signed=True))
    if _TEXT <= kind <= _TEXT + _TAG_ROOM:
        return repr(raw[: kind - _TEXT].decode(errors="backslashreplace"))
    return f"#{raw.hex()}" if code else "none"


def _tag_of_digest(raw: bytes) -> int:
    return _tag(_DIGEST, hashlib.blake2b(raw, digest_size=_TAG_ROOM).digest())


def _tag(kind: int, raw: bytes) -> int:
    return int.from_bytes(bytes([kind]) + raw.ljust(_TAG_ROOM, b"\0"), "little")
