"""A plan's fetches, put together by the rank that is asked: one link to each.

Both ends of a link know from the order which items it brings, and in which order.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ftcomm.errors import ProtocolError
from ftcomm.protocol.link_messages import FetchItem, FetchRequest
from ftcomm.protocol.messages import (
    Plan,
)
from ftcomm.protocol.position import PRELUDE, Position, PositionRange
from ftcomm.recovery.events import StartFetch


def flaw_in(plan: Plan) -> str:
    """Explain why `plan` cannot be carried out; empty for every plan of a correct tracker."""
    if not 0 <= plan.rank < len(plan.grouping):
        return f"the plan of epoch {plan.epoch} is for rank {plan.rank}, which has no place in it"
    if plan.load > PRELUDE and not plan.load_from:
        return f"the plan of epoch {plan.epoch} loads version {plan.load} from nobody"
    return ""


def fetch_orders(plan: Plan) -> list[StartFetch]:
    """Return this member's fetches by rank; the parts of a checkpoint are dealt to its holders."""
    runs: dict[int, list[PositionRange]] = {}
    owners: dict[int, list[int]] = {}
    loader = -1
    for fetch in plan.fetches:
        runs.setdefault(fetch.source, []).append(fetch.run)
    for local in plan.locals or ():
        owners.setdefault(local.source, []).append(local.rank)
    if plan.load > PRELUDE:
        # By epoch too: a holder that could not give it, for lack of memory, is not asked again.
        loader = plan.load_from[(plan.rank + plan.epoch) % len(plan.load_from)]
    sources = {*runs, *owners, *([loader] if loader >= 0 else [])}
    return [
        StartFetch(
            epoch=plan.epoch,
            source=source,
            load=plan.load if source == loader else PRELUDE,
            runs=tuple(runs.get(source, ())),
            local_version=plan.frontier.version if source in owners else PRELUDE,
            locals=tuple(owners.get(source, ())),
        )
        for source in sorted(sources)
    ]


class Item(NamedTuple):
    """The name of one thing that is fetched; `rank` owns a local state, -1 for all else."""

    what: str
    position: Position
    rank: int = -1

    def __str__(self) -> str:
        owner = "" if self.rank < 0 else f" of rank {self.rank}"
        return f"{self.what} {self.position}{owner}"


def items_of(order: StartFetch | FetchRequest) -> Iterator[Item]:
    """Yield the requested items in the order in which a holder sends them."""
    if order.load > PRELUDE:
        yield Item("checkpoint", Position(0, order.load, 0))
    for rank in order.locals:
        yield Item("local", Position(0, order.local_version, 0), rank)
    for run in order.runs:
        for seqno in run.seqnos():
            yield Item("result", Position(0, run.version, seqno))


class ExpectedItems:
    """Items that a holder still owes for an order: each once, nothing else, and all of them."""

    def __init__(self, order: StartFetch) -> None:
        self._order = order
        self._items = items_of(order)
        self._due = next(self._items, None)

    def take(self, head: FetchItem) -> None:
        """The holder announces an item; raises ProtocolError."""
        sent = Item(head.what, head.position, head.rank)
        if sent != self._due:
            raise self._error(f"sends {sent}, due is {self._due or 'the end'}")
        self._due = next(self._items, None)

    def wait(self) -> None:
        """The holder says that the next item is being packed.

        Raises:
            ProtocolError: it is no checkpoint, and nothing else is ever packed for a fetch.
        """
        if self._due is None or self._due.what != "checkpoint":
            raise self._error(f"says that it packs a checkpoint, due is {self._due or 'the end'}")

    def end(self) -> None:
        """The holder says that this is all; raises ProtocolError."""
        if self._due is not None:
            raise self._error(f"ends before it has sent {self._due}")

    def _error(self, what: str) -> ProtocolError:
        source = self._order.source
        return ProtocolError(
            f"rank {source}, asked for what is missing here, {what}",
            rank=source,
            epoch=self._order.epoch,
            remedy="run one release of ftcomm on all machines",
        )
