"""Forms of messages: made once, and only for calls that are surely the same."""

from typing import Any

import numpy as np
import pytest

from ftcomm.api.known_forms import KnownForms
from ftcomm.protocol.link_messages import Content
from ftcomm.requests.message_request import MessageToSend

SITE = "t.py:7"


def to_send(
    forms: KnownForms, x: Any, to: Any = 1, tag: Any = 0, site: str = SITE
) -> MessageToSend:
    return forms.to_send(x, to, tag, site, copy=True)


def test_a_form_is_made_once() -> None:
    forms, x = KnownForms(0, 3), np.arange(6.0).reshape(2, 3)
    first, second = to_send(forms, x), to_send(forms, x + 1)
    assert second.form is first.form
    assert second.elements.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    received = forms.to_receive(1, 0, SITE, x)
    assert forms.to_receive(1, 0, SITE, x + 1) is received
    assert forms.to_receive(1, 0, SITE, None) is not received


@pytest.mark.parametrize(
    "other",
    [
        {"x": np.zeros((2, 3), np.float32)},
        {"x": np.zeros((3, 2))},
        {"x": np.zeros((2, 3), ">f8")},
        {"to": 2},
        {"tag": 1},
        {"tag": "0"},
        {"site": "t.py:8"},
    ],
    ids=str,
)
def test_what_differs_has_another_form(other: dict[str, Any]) -> None:
    forms = KnownForms(0, 3)
    given: dict[str, Any] = {"x": np.zeros((2, 3)), "to": 1, "tag": 0, "site": SITE}
    first = to_send(forms, **given)
    for _ in range(2):
        message = to_send(forms, **{**given, **other})
        assert message.form is not first.form
        assert message.elements.dtype.isnative


def test_equal_tags_of_other_types_are_no_key() -> None:
    """A tag of 1.0 is refused, whatever was sent with 1 before."""
    forms, x = KnownForms(0, 3), np.zeros(2)
    to_send(forms, x, tag=1)
    forms.to_receive(1, 1, SITE, x)
    for tag in (1.0, 1 + 0j):
        with pytest.raises(TypeError, match="tag must be an int or a str"):
            to_send(forms, x, tag=tag)
        with pytest.raises(TypeError, match="tag must be an int or a str"):
            forms.to_receive(1, tag, SITE, x)  # type: ignore[arg-type]  # as a user may
    with pytest.raises(TypeError, match="to must be a rank"):
        to_send(forms, x, to=1.0, tag=1)
    with pytest.raises(TypeError, match="source must be a rank"):
        forms.to_receive(1.0, 1, SITE, x)  # type: ignore[arg-type]  # as a user may


def test_a_strided_array_and_a_number_go_the_long_way_with_the_same_answer() -> None:
    forms, x = KnownForms(0, 3), np.arange(6.0)
    to_send(forms, x[:3])
    assert to_send(forms, x[::2]).elements.tolist() == [0.0, 2.0, 4.0]
    assert to_send(forms, 5).form.content is Content.PYTHON_NUMBER
    assert to_send(forms, np.float64(5.0)).form.content is Content.NUMPY_SCALAR
