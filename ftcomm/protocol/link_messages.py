"""Messages between workers, by which a link of theirs begins: through a relay, or with memory."""

from dataclasses import dataclass

from ftcomm.protocol.field_types import Blob, Prose


@dataclass(frozen=True, slots=True)
class Relayed:
    """The relay has a connection to the wanted rank, or `failure` says why not."""

    failure: Prose = ""


@dataclass(frozen=True, slots=True)
class Sharing:
    """A step towards a shared segment, or `failure` says why there is none.

    From the dialler with the segment's descriptor, then from the listener, each with the nonce that
    it wrote into the segment; the last, from the dialler, has none: what it says holds for both.
    """

    nonce: Blob = b""
    failure: Prose = ""
