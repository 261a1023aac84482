"""Parts: optional matters of a group, which the core asks at fixed moments.

A part keeps its own state and never refers to the group: it is given the group with each question,
so that a copy of a group by its parts is a whole copy.  What two parts share is a plain class: of a
dataclass the explorer's copy has two.  The core knows the moments, and no part by its name;
`all_parts` alone lists the parts, in the order in which they are asked.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from ftcomm_tracker.core.ending import PendingEnd
    from ftcomm_tracker.core.group_state import GroupState, Peer

NEVER = float("inf")
Row = Mapping[str, Any]  # of a status document


class Part:
    """One optional matter; a method that a part does not define does nothing.

    Attributes:
        hears: the classes of workers' messages that this part takes.
        texts: of its findings, as `reporting.explain` has them.
    """

    hears: ClassVar[tuple[type, ...]] = ()
    texts: ClassVar[str] = ""

    @property
    def has_end(self) -> bool:
        """True while the job can only end, and this part holds its end."""
        return False

    def on_message(self, group: "GroupState", peer: "Peer", message: Any) -> None:
        """Take what a worker says, of the classes in `hears`; the core has taken it before."""

    def candidate(self, group: "GroupState", rank: int) -> "Peer | None":
        """Name the connected worker that takes the empty place of `rank`."""
        return None

    def on_seated(self, group: "GroupState", peer: "Peer") -> None:
        """A worker has a rank from now on."""

    def on_gone(self, group: "GroupState", peer: "Peer") -> None:
        """A connection is forgotten."""

    def on_end(self, group: "GroupState", end: "PendingEnd") -> "PendingEnd | None":
        """Let an end of the job pass, or change it; None holds it for `ending.release_end`."""
        return end

    def due(self, group: "GroupState") -> float:
        """Time of the next `on_time` that does something."""
        return NEVER

    def on_time(self, group: "GroupState") -> None:
        """Do whatever is due by now: after every event, whatever other parts have done in it."""

    def rows(self, group: "GroupState", now: float) -> dict[str, Any]:
        """Keys of this part in the status document, or within a row of the core's."""
        return {}

    @staticmethod
    def lines(document: Row) -> Iterable[str]:
        """Its keys of a status document for a person."""
        return ()

    @staticmethod
    def explain(document: Row) -> Iterator[tuple[str, Row]]:
        """The kinds of `texts` that hold of a status document, and their facts."""
        yield from ()
