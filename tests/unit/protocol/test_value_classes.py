"""Classes of values are as those of `dataclasses` to who uses them."""

import dataclasses
from typing import ClassVar

import pytest

from ftcomm.protocol import value_classes


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    kind: ClassVar[str] = "both"
    rank: int
    tag: bytes = b""


@value_classes.dataclass(frozen=True, slots=True)
class Value:
    kind: ClassVar[str] = "both"
    rank: int
    tag: bytes = b""


@value_classes.dataclass(frozen=True, slots=True)
class Other:
    rank: int
    tag: bytes = b""


@value_classes.dataclass(frozen=True, slots=True)
class Empty:
    pass


def test_equal_contents_are_equal_values_of_one_class() -> None:
    assert Value(1) == Value(1, b"")
    assert Value(1) != Value(2)
    assert Value(1) != Other(1)
    assert Value(1) != 1
    assert len({Value(1), Value(1), Value(2), Empty(), Empty()}) == 3


def test_it_reads_and_is_made_as_a_dataclass() -> None:
    assert repr(Value(1)) == repr(Model(1)).replace("Model", "Value")
    assert hash(Value(1, b"x")) == hash(Model(1, b"x"))
    names = [[field.name for field in dataclasses.fields(each)] for each in (Value, Model)]
    assert names[0] == names[1]
    assert dataclasses.replace(Value(1), tag=b"x") == Value(1, b"x")
    with pytest.raises(TypeError, match="rank"):
        Value()  # type: ignore[call-arg]  # to be refused


def test_it_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        Value(1).other = 2  # type: ignore[attr-defined]  # to be refused
