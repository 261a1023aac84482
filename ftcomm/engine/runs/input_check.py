"""The setting ``verify``: has this incarnation computed what its earlier incarnation did?"""

from ftcomm.errors import CollectiveMismatchError
from ftcomm.memory.pool import LoggedResult
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import USUAL_CAUSE, signature_text
from ftcomm.requests.request import DIGEST_BYTES, Request


def is_same_input(call: Request, signature: bytes, logged: LoggedResult | None, rank: int) -> bool:
    """False if the log knows that `rank` passed something else to this very collective."""
    if logged is None or not logged.digests or signature != call.form.signature:
        return True
    return call.digest(rank) == logged.digests[rank * DIGEST_BYTES : (rank + 1) * DIGEST_BYTES]


def other_input_error(call: Request, rank: int, position: Position) -> CollectiveMismatchError:
    """A script computes something else after a restart: no replay can be right (rule R7)."""
    return CollectiveMismatchError(
        f"rank {rank} replays collective {position}, {signature_text(call.form.signature)} at"
        f" {call.form.site}, and this process computed another input for it than its earlier one;"
        f" {USUAL_CAUSE}"
    )
