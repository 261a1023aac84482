"""Comparison of a frame's header with the schedule, and the rank to blame for a mismatch."""

from typing import NamedTuple

from ftcomm.errors import ProtocolError
from ftcomm.protocol.frame_header import FrameHeader, unpack_header
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import SIGNATURE_BYTES, Signature, agree, named_shape
from ftcomm.transport.interruptions import LinkLost, SignatureMismatch


class CallHeader(NamedTuple):
    """Common part of all frames of one call; `suffix` is signature and call site."""

    epoch: int
    position: Position
    suffix: bytes


def announced_signature(raw: bytes, rank: int, call: CallHeader) -> bytes:
    """The signature in the first frame of rank `rank`, for a call that is given dtype and shape.

    Raises:
        SignatureMismatch: the peer runs another collective, or is at another position; or its array
            has a shape that no signature names.
        LinkLost: the bytes are no header, or belong to another epoch.
    """
    try:
        theirs = unpack_header(raw)
    except ProtocolError as error:
        raise LinkLost(rank, error.cause) from error
    if theirs.epoch != call.epoch:
        raise LinkLost(rank, f"frame of epoch {theirs.epoch} in epoch {call.epoch}")
    fits = theirs.position == call.position
    fits = fits and agree(call.suffix[:SIGNATURE_BYTES], theirs.signature)
    if not fits or named_shape(Signature.decode(theirs.signature)) is None:
        raise SignatureMismatch(rank, theirs.position, theirs.signature, theirs.site)
    return theirs.signature


def check_header(
    raw: bytes | bytearray | memoryview,
    rank: int,
    call: CallHeader,
    step: int | None,
    length: int,
) -> FrameHeader:
    """Accept the frame of rank `rank` or say what is wrong with it.

    A call site that differs is the one difference that is allowed.

    Args:
        raw: at least a header.
        rank: the peer.
        call: what all frames of the call say.
        step: of the schedule; None where any will do.
        length: of the payload.

    Returns:
        What it says.

    Raises:
        SignatureMismatch: the peer runs another collective, or is at another position.
        LinkLost: the bytes are no header, belong to another epoch, or do not fit the schedule.
    """
    try:
        theirs = unpack_header(raw)
    except ProtocolError as error:
        raise LinkLost(rank, error.cause) from error
    if theirs.epoch != call.epoch:
        raise LinkLost(rank, f"frame of epoch {theirs.epoch} in epoch {call.epoch}")
    if theirs.position != call.position or theirs.signature != call.suffix[:SIGNATURE_BYTES]:
        raise SignatureMismatch(rank, theirs.position, theirs.signature, theirs.site)
    if theirs.length != length or step not in (None, theirs.step):
        raise LinkLost(
            rank,
            f"frame of step {theirs.step} with {theirs.length} bytes, "
            f"expected step {step} with {length}",
        )
    return theirs
