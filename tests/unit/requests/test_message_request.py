"""Arguments of messages: what is sent, to whom, and what a receive refuses."""

from typing import Any

import numpy as np
import pytest

from ftcomm.memory.message_value import MessageValue, digest_of, text_of
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.field_types import MAX_TAG
from ftcomm.protocol.link_messages import Content
from ftcomm.requests.message_request import (
    array_message,
    check_content,
    check_object,
    object_message,
    other_rank,
    packed_tag,
    received,
)
from ftcomm.requests.object_payload import unpack_object

SITE = "t.py:1"


def value_of(x: Any) -> MessageValue:
    message = array_message(x, 1, b"t", SITE, copy=True)
    return MessageValue(LoggedResult(message.elements, message.form.shape), message.form.content)


def digest(flat: Array, shape: tuple[int, ...], content: Content) -> bytes:
    return digest_of(flat, text_of(content, flat.dtype, shape))


def test_contents_that_differ_have_digests_that_differ() -> None:
    flat = np.arange(4.0)
    digests = {
        digest(flat, (4,), Content.ARRAY),
        digest(flat, (2, 2), Content.ARRAY),
        digest(flat.view(np.int64), (4,), Content.ARRAY),
        digest(flat, (4,), Content.OBJECT),
        digest(flat + 1, (4,), Content.ARRAY),
    }
    assert len(digests) == 5
    assert all(len(each) == 16 for each in digests)


def test_tags_of_two_types_are_never_the_same() -> None:
    tags = [packed_tag(tag) for tag in (0, 1, -1, "0", "1", "", "\udc80", np.int64(7), 2**63 - 1)]
    assert len(set(tags)) == len(tags)
    assert packed_tag(np.int64(1)) == packed_tag(1)
    assert max(map(len, tags)) <= MAX_TAG
    assert len(packed_tag("x" * (MAX_TAG - 1))) == MAX_TAG


@pytest.mark.parametrize(
    ("tag", "error", "said"),
    [
        (1.5, TypeError, "tag must be an int or a str, not float"),
        (None, TypeError, "tag must be an int or a str, not NoneType"),
        (2**63, ValueError, "tag 0x8000000000000000 does not fit 64 bits"),
        (-(1 << 20_000), ValueError, "tag -0x10+ does not fit 64 bits"),
        ("x" * MAX_TAG, ValueError, f"tag of {MAX_TAG} bytes, at most {MAX_TAG - 1}"),
    ],
    ids=["float", "none", "large", "huge", "long"],
)
def test_other_tags_are_refused(tag: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        packed_tag(tag)


@pytest.mark.parametrize(
    ("peer", "error", "said"),
    [
        (0, ValueError, "to=0 is this rank; a rank cannot message itself"),
        (3, ValueError, "to=3 is no rank of this job: they are 0 to 2"),
        (-1, ValueError, "to=-1 is no rank of this job: they are 0 to 2"),
        ("1", TypeError, "to must be a rank, not str"),
        (1.0, TypeError, "to must be a rank, not float"),
    ],
    ids=["self", "above", "below", "text", "float"],
)
def test_a_message_goes_to_another_rank(peer: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        other_rank(peer, "to", 0, 3)


def test_a_rank_may_be_of_any_integer_type() -> None:
    assert other_rank(np.int32(2), "to", 0, 3) == 2


@pytest.mark.parametrize(
    "x", [np.arange(6.0).reshape(2, 3), np.float32(2.5), 7, True, 1.5, 2j, [[1, 2]]], ids=repr
)
def test_what_is_received_is_what_was_sent(x: Any) -> None:
    got = received(value_of(x), None)
    kind = np.ndarray if isinstance(x, list) else type(x)
    assert type(got) is kind
    assert np.array_equal(got, x)
    assert np.asarray(got).dtype == np.asarray(x).dtype


def test_a_message_is_put_into_the_users_own_array() -> None:
    out = np.zeros((3, 2)).T
    got = received(value_of(np.arange(6.0).reshape(2, 3)), out)
    assert got is out
    assert out.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


@pytest.mark.parametrize(
    ("shape", "dtype", "said"),
    [
        ((3,), "f8", r"rank 2 sent float64\[2\], and out= or like= is float64\[3\]"),
        ((2,), "f4", r"rank 2 sent float64\[2\], and out= or like= is float32\[2\]"),
    ],
    ids=["shape", "dtype"],
)
def test_an_array_that_does_not_fit_is_refused(
    shape: tuple[int, ...], dtype: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        check_content(value_of(np.zeros(2)), 2, shape, np.dtype(dtype))
    check_content(value_of(np.zeros(2)), 2, None, None)
    check_content(value_of(np.zeros(2)), 2, (2,), np.dtype("f8"))
    check_content(value_of(np.zeros(2)), 2, (2,), np.dtype(">f8"))  # copied, element by element


def test_objects_and_arrays_are_received_by_their_own_calls() -> None:
    message = object_message({"a": [1, 2]}, 1, b"t", SITE)
    value = MessageValue(LoggedResult(message.elements, message.form.shape), message.form.content)
    assert value.is_object
    check_object(value, 2)
    assert unpack_object(value.stored.flat) == {"a": [1, 2]}
    with pytest.raises(TypeError, match=r"rank 2 sent an object; receive it with recv_object\(\)"):
        check_content(value, 2, None, None)
    with pytest.raises(TypeError, match=r"rank 2 sent float64\[1\]; receive it with recv\(\)"):
        check_object(value_of(np.zeros(1)), 2)


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(TypeError, match="dtype object"):
        array_message([object()], 1, b"t", SITE, copy=True)
    with pytest.raises(TypeError, match="obj"):
        object_message(object(), 1, b"t", SITE)


def test_an_input_is_lent_only_where_the_user_says_so() -> None:
    x = np.zeros(3)
    assert not array_message(x, 1, b"t", SITE, copy=True).is_own
    lent = array_message(x, 1, b"t", SITE, copy=False)
    assert lent.is_own
    assert np.may_share_memory(lent.elements, x)
