"""Options of a collective, beside its input and where its result goes; declared once."""

from collections.abc import Sequence
from dataclasses import dataclass

from ftcomm.collectives.op_argument import UncheckedOp
from ftcomm.config.deadline import Duration
from ftcomm.protocol.signature import Tag


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The caller's wishes, not checked yet; each kind uses those that it has.

    Attributes:
        op: the reduction; a kind without one does not look at it.
        root: the rank that all others look to; -1 for a kind without one.
        algorithm: a name; None for the job's choice.
        wire: the format in which elements travel; None for that of the input.
        deadline: seconds or a timedelta from the call on; None for the job's.
        log: what is kept for the replay of a call that gives each rank another result, by the name
            of a `LogMode`; None leaves it to the size.
        copy: what is kept of the input is a copy; False keeps the user's own memory.
        counts: how many rows each rank has or gets; None if the kind has none, or finds them out.
        tag: a name of the call, which all ranks must give alike; None for none.
    """

    op: UncheckedOp = "sum"
    root: int = -1
    algorithm: str | None = None
    wire: str | None = None
    deadline: Duration | None = None
    log: str | None = None
    copy: bool = True
    counts: Sequence[int] | None = None
    tag: Tag | None = None
