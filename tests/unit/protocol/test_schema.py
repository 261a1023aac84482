"""A message's row follows from the annotations of its dataclass."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import pytest

from ftcomm.protocol.schema import (
    NOT_SENT,
    AtMost,
    Bool,
    Bytes,
    Field,
    Int,
    Many,
    Maybe,
    Pair,
    Record,
    Text,
    record_of,
)

Digit = Annotated[int, Int(0, 9)]
Word = Annotated[str, Text(8, cut=True)]


class Point(NamedTuple):
    """A named tuple within a message."""

    x: Digit
    y: Digit


@dataclass(frozen=True, slots=True)
class Sample:
    """A message with a field of each kind."""

    flag: bool
    raw: Annotated[bytes, Bytes(3)]
    point: Point
    words: Annotated[tuple[Word, ...], AtMost(2)]
    pair: tuple[Word, Word]
    maybe: Annotated[tuple[Point, ...], AtMost(4)] | None = None
    elsewhere: Annotated[tuple[int, ...], NOT_SENT] = ()


def shown(field: Field) -> object:
    """A kind as plain tuples, which can be compared."""
    match field:
        case Int(lo=lo, hi=hi):
            return lo, hi
        case Bool():
            return "bool"
        case Text(limit=limit, cut=cut):
            return "text", limit, cut
        case Bytes(limit=limit):
            return "bytes", limit
        case Many(item=item, limit=limit):
            return "many", limit, shown(item)
        case Pair(item=item):
            return "pair", shown(item)
        case Maybe(item=item):
            return "maybe", shown(item)
        case Record(name=name, fields=fields):
            return name, {key: shown(kind) for key, kind in fields.items()}
    raise AssertionError(field)


def test_a_row_has_the_bounds_of_the_annotations() -> None:
    point = ("Point", {"x": (0, 9), "y": (0, 9)})
    word = ("text", 8, True)
    assert shown(record_of(Sample)) == (
        "Sample",
        {
            "flag": "bool",
            "raw": ("bytes", 3),
            "point": point,
            "words": ("many", 2, word),
            "pair": ("pair", word),
            "maybe": ("maybe", ("many", 4, point)),
        },
    )


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "has no bounds"),
        (str | None, "has no bounds"),
        (Digit | bool, "a union other than with None"),
        (tuple[Digit, ...], "neither bounded by AtMost nor a pair"),
        (tuple[Digit, Word], "neither bounded by AtMost nor a pair"),
        (Annotated[int, 9], "9 is no bound"),
    ],
    ids=["number", "optional", "union", "list", "mixed_pair", "odd_bound"],
)
def test_a_field_without_bounds_is_refused(annotation: object, text: str) -> None:
    declared = type("Loose", (), {"__annotations__": {"value": annotation}})
    with pytest.raises(TypeError, match=rf"Loose\.value: .*{text}"):
        record_of(declared)
