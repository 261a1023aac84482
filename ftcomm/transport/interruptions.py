"""Abnormal ends of an executor's run; the engine turns them into decisions.

None of them reaches a user.  They are values of the data plane: which link, which header.
"""

from ftcomm.protocol.position import Position


class Interrupted(Exception):  # noqa: N818 - a wish from the control thread, not an error
    """The waker was set while a collective was running; it is still set."""


class LinkLost(Exception):  # noqa: N818 - an event about a peer, not an error of this process
    """The link to `rank` is of no more use in this epoch."""

    def __init__(self, rank: int, cause: str) -> None:
        super().__init__(f"link to rank {rank} lost: {cause}")
        self.rank = rank
        self.cause = cause


class SignatureMismatch(Exception):  # noqa: N818 - a finding; CollectiveMismatchError is the error
    """Rank `rank` runs another collective than this one; `position` and the rest are its own."""

    def __init__(self, rank: int, position: Position, signature: bytes, site: str) -> None:
        super().__init__(f"rank {rank} is at {position} with another collective ({site})")
        self.rank = rank
        self.position = position
        self.signature = signature
        self.site = site
