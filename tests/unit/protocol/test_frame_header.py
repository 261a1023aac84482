"""Data frame header: round trip, and refusal of what is not one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcomm.errors import ProtocolError
from ftcomm.protocol import frame_header
from ftcomm.protocol.frame_header import FrameHeader, make_suffix, pack_header, unpack_header
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind, Signature

SIGNATURE = Signature(Kind.BARRIER).encode()
HEADER = FrameHeader(7, Position(0, -1, 3), 2, 4096, SIGNATURE, "train.py:12")


@given(
    epoch=st.integers(0, 2**32 - 1),
    branch=st.integers(0, 2**32 - 1),
    version=st.integers(-(2**31), 2**31 - 1),
    seqno=st.integers(0, 2**32 - 1),
    step=st.integers(0, 2**32 - 1),
    length=st.integers(0, frame_header.MAX_PAYLOAD),
    site=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=24),
)
def test_what_is_packed_is_unpacked(epoch, branch, version, seqno, step, length, site):
    position = Position(branch, version, seqno)
    header = FrameHeader(epoch, position, step, length, SIGNATURE, site)
    raw = pack_header(header)
    assert len(raw) == frame_header.HEADER_BYTES == 104
    assert unpack_header(raw) == unpack_header(bytearray(raw)) == header


def test_a_long_site_keeps_its_right_end_and_foreign_letters_become_marks():
    suffix = make_suffix(SIGNATURE, "very/long/directory/of/tränen/train.py:1234")
    assert suffix[48:] == b"y/of/tr?nen/train.py:1234"[-24:]
    with pytest.raises(ValueError, match="signature of 3 bytes"):
        make_suffix(b"abc", "x")


def mutated(offset: int, value: bytes) -> bytes:
    raw = bytearray(pack_header(HEADER))
    raw[offset : offset + len(value)] = value
    return bytes(raw)


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (pack_header(HEADER)[:103], "103 bytes"),
        (b"GET / HTTP/1.1\r\n".ljust(104), "begins with"),
        (mutated(0, b"\xc2"), "begins with"),
        (mutated(2, b"\x09"), "unknown kind 9"),
        (mutated(3, b"\x04"), "flags 0x4"),
        (mutated(24, b"\xff" * 8), "claims"),
    ],
)
def test_what_is_not_a_header_is_refused(raw, complaint):
    with pytest.raises(ProtocolError, match=complaint):
        unpack_header(raw)
