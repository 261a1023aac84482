"""The 104-byte header of every data frame: who, which collective, which step, how many bytes.

Layout, little-endian::

    prefix 32   magic+version u16 | kind u8 | flags u8 | epoch u32 | branch u32 | version i32
                | seqno u32 | step u32 | payload length u64
    suffix 72   signature 48 | call site 24 (ASCII, zero-padded)

The suffix is the same for all frames of a call, so a sender makes it once.  A receiver knows every
byte of the prefix and of the signature that it expects; it compares bytes and parses only what
differs.
"""

import struct
from typing import NamedTuple

from ftcomm.errors import ProtocolError
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import SIGNATURE_BYTES, SITE_BYTES

FRAME_MAGIC = 0xF7C1  # the low byte is the version of this layout
DATA_FRAME = 1

PREFIX = struct.Struct("<HBBIIiIIQ")
PREFIX_BYTES = 32
SUFFIX_BYTES = SIGNATURE_BYTES + SITE_BYTES
HEADER_BYTES = PREFIX_BYTES + SUFFIX_BYTES
COMPARED_BYTES = PREFIX_BYTES + SIGNATURE_BYTES  # the call site may differ between ranks
assert PREFIX.size == PREFIX_BYTES

MAX_PAYLOAD = 1 << 40  # no array of one step is a tebibyte; a larger length is a broken stream


class FrameHeader(NamedTuple):
    """Fields of a peer's frame header."""

    epoch: int
    position: Position
    step: int
    length: int
    signature: bytes
    site: str


def make_suffix(signature: bytes, site: str) -> bytes:
    """The 72 bytes that all frames of one call share; a long `site` loses its left end."""
    if len(signature) != SIGNATURE_BYTES:
        raise ValueError(f"signature of {len(signature)} bytes, expected {SIGNATURE_BYTES}")
    text = site.encode("ascii", "replace")[-SITE_BYTES:]
    return signature + text.ljust(SITE_BYTES, b"\0")


def pack_prefix(epoch: int, position: Position, step: int, length: int) -> bytes:
    """The 32 bytes in front of the suffix."""
    branch, version, seqno = position
    return PREFIX.pack(FRAME_MAGIC, DATA_FRAME, 0, epoch, branch, version, seqno, step, length)


def pack_header(header: FrameHeader) -> bytes:
    """All 104 bytes; `unpack_header` is the inverse."""
    prefix = pack_prefix(*header[:4])
    return prefix + make_suffix(header.signature, header.site)


def unpack_header(raw: bytes | bytearray | memoryview) -> FrameHeader:
    """Parse the first 104 bytes of `raw`.

    Raises:
        ProtocolError: too short, another layout, an unknown kind or flag, or an absurd length.
    """
    if len(raw) < HEADER_BYTES:
        raise ProtocolError(f"data frame header of {len(raw)} bytes, expected {HEADER_BYTES}")
    fields = PREFIX.unpack_from(raw)
    magic, kind, flags, epoch, branch, version, seqno, step, length = fields
    if magic != FRAME_MAGIC:
        raise ProtocolError(f"data frame begins with {magic:#06x}, expected {FRAME_MAGIC:#06x}")
    if kind != DATA_FRAME or flags:
        raise ProtocolError(f"data frame of unknown kind {kind} or flags {flags:#x}")
    if length > MAX_PAYLOAD:
        raise ProtocolError(f"data frame claims {length} bytes, the limit is {MAX_PAYLOAD}")
    signature = bytes(raw[PREFIX_BYTES:COMPARED_BYTES])
    site = bytes(raw[COMPARED_BYTES:HEADER_BYTES]).rstrip(b"\0").decode("ascii", "replace")
    site = site.replace("\ufffd", "?")  # the mark that `make_suffix` writes for such letters
    position = Position(branch, version, seqno)
    return FrameHeader(epoch, position, step, length, signature, site)
