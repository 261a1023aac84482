"""A receive of the thread that reads: what may come straight into its user's array."""

import warnings
from typing import Any

import numpy as np
import pytest

from ftcomm.control.messages.direct_receive import DirectReceive
from ftcomm.errors import ProtocolError
from ftcomm.memory.message_value import MessageValue
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.link_messages import Content
from ftcomm.protocol.message_head import HeadFields

TAG = b"t"
DOUBLE = np.dtype(np.float64)


def receive_into(out: Array | None) -> DirectReceive:
    return DirectReceive(1, TAG, None, None, out)


def fields_of(shape: tuple[int, ...] = (2, 3), **changes: Any) -> HeadFields:
    fields = HeadFields(0, TAG, Content.ARRAY, 0, shape, 8 * int(np.prod(shape)))
    return fields._replace(**changes)


def value_in(flat: Array) -> MessageValue:
    return MessageValue(LoggedResult(flat, flat.shape), Content.ARRAY)


def test_a_message_that_fits_comes_into_out() -> None:
    out = np.zeros((2, 3))
    direct = receive_into(out)
    place = direct.place_for(1, fields_of(), DOUBLE)
    assert place is not None
    place[:] = np.arange(6.0).view(np.uint8)
    assert out.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert direct.is_filling


@pytest.mark.parametrize(
    ("source", "fields", "dtype"),
    [
        (2, fields_of(), DOUBLE),
        (1, fields_of(tag=b"u"), DOUBLE),
        (1, fields_of(content=Content.OBJECT), DOUBLE),
        (1, fields_of((3, 2)), DOUBLE),
        (1, fields_of((6,)), DOUBLE),
        (1, fields_of(), np.dtype(np.int64)),
    ],
    ids=["source", "tag", "object", "shape", "dimensions", "dtype"],
)
def test_another_message_does_not(source: int, fields: HeadFields, dtype: Any) -> None:
    direct = receive_into(np.zeros((2, 3)))
    assert direct.place_for(source, fields, dtype) is None
    assert not direct.is_filling


def test_out_is_given_to_one_message() -> None:
    """The one behind it, which may come in the same read, would be written over it."""
    direct = receive_into(np.zeros((2, 3)))
    assert direct.place_for(1, fields_of(), DOUBLE) is not None
    assert direct.place_for(1, fields_of(), DOUBLE) is None


def test_an_array_of_another_class_is_filled_by_its_bytes() -> None:
    """A matrix has two dimensions, however it is reshaped."""
    with warnings.catch_warnings(action="ignore"):
        out = np.zeros((2, 3)).view(np.matrix)
    place = receive_into(out).place_for(1, fields_of(), DOUBLE)
    assert place is not None
    assert place.shape == (48,)
    assert np.may_share_memory(place, out)


@pytest.mark.parametrize("why", ["none", "over", "read-only"])
def test_memory_that_is_not_waited_for_is_left_alone(why: str) -> None:
    out = np.zeros((2, 3))
    direct = receive_into(None if why == "none" else out)
    direct.is_over = why == "over"
    out.flags.writeable = why != "read-only"
    assert direct.place_for(1, fields_of(), DOUBLE) is None


def test_a_message_that_has_to_be_held_leaves_the_users_memory() -> None:
    out = np.arange(6.0)
    held = receive_into(out).own(value_in(out))
    assert not np.may_share_memory(held.stored.flat, out)
    assert (held.stored.flat.tolist(), held.content) == ([*range(6)], Content.ARRAY)


@pytest.mark.parametrize("out", [None, np.zeros(6)], ids=["none", "other"])
def test_a_message_that_came_into_own_memory_is_not_copied(out: Array | None) -> None:
    value = value_in(np.arange(6.0))
    assert receive_into(out).own(value) is value


def test_a_message_for_which_there_is_no_room_ends_its_link() -> None:
    class Full(np.ndarray[Any, Any]):
        def copy(self, *_: Any) -> Any:
            raise MemoryError("full")

    out = np.zeros(6)
    with pytest.raises(ProtocolError, match="no room for 48 bytes: full"):
        receive_into(out).own(value_in(out.view(Full)))
