"""Messages about the checkpoint that a spare holds in advance (rule R17)."""

from dataclasses import dataclass

from ftcomm.protocol.field_types import Address, ItemBytes, Name, Port, Rank
from ftcomm.protocol.position import Version


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Fetch checkpoint ``version``, which is committed, from this member; answer `Prefetched`."""

    version: Version
    rank: Rank
    host: Name
    address: Address
    port: Port


@dataclass(frozen=True, slots=True)
class Prefetched:
    """The checkpoint that this spare holds now (-1: none), and the bytes of its state."""

    version: Version
    nbytes: ItemBytes
