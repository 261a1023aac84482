"""Values for messages: what the schema allows, whole."""

from collections.abc import Callable

from hypothesis import strategies as st

from ftcomm.protocol.codec import SCHEMAS
from ftcomm.protocol.messages import ControlMessage, WorkerMessage
from ftcomm.protocol.schema import Bool, Bytes, Field, Int, Many, Maybe, Pair, Record, Text


def few(lo: int, hi: int) -> st.SearchStrategy[int]:
    """The bounds and small numbers: what says something to a machine of small jobs."""
    return st.sampled_from([lo, hi]) | st.integers(max(lo, -1), min(hi, 3))


def values(
    field: Field, whole: Callable[[int, int], st.SearchStrategy[int]] = few
) -> st.SearchStrategy[object]:
    """Values that a field kind allows, with whole numbers as `whole` gives them."""
    match field:
        case Int(lo=lo, hi=hi):
            return whole(lo, hi)
        case Bool():
            return st.booleans()
        case Text(limit=limit):
            return st.text(max_size=min(limit, 80) // 4)
        case Bytes(limit=limit):
            return st.binary(max_size=min(limit, 64))
        case Many(item=item, limit=limit):
            return st.lists(values(item, whole), max_size=min(limit, 4)).map(tuple)
        case Pair(item=item):
            return st.tuples(values(item, whole), values(item, whole))
        case Maybe(item=item):
            return st.none() | values(item, whole)
        case Record(build=build, fields=fields):
            return st.builds(build, **{name: values(kind, whole) for name, kind in fields.items()})
    raise AssertionError(field)


def of(kinds: object) -> st.SearchStrategy[ControlMessage]:
    """Messages of the given kinds, a union of classes."""
    members = getattr(kinds, "__args__", (kinds,))
    return st.one_of([values(row) for row in SCHEMAS.values() if row.build in members])


worker_messages = of(WorkerMessage)
