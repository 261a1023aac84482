"""A state is taken apart into parts that say what they are and stand for their content."""

from typing import Any

import numpy as np
import pytest

from ftcomm.protocol.codec import decode_body, encode
from ftcomm.protocol.field_types import MAX_LEAVES
from ftcomm.protocol.messages import Leaf, Leaves
from ftcomm.state.leaf_digests import leaves_of
from ftcomm.state.serializer import pack_state

STATE: dict[str, Any] = {
    "step": 7,
    "momentum": {"w1": np.arange(4.0), "w2": np.ones((2, 3), np.float32)},
    "names": ["a", "b"],
    "text": "x" * 100,
    "pair": (np.int64(3), None),
}


def leaves(state: Any) -> dict[str, Leaf]:
    return {leaf.path: leaf for leaf in leaves_of(pack_state(state))}


def test_each_part_has_a_path_and_says_what_it_is() -> None:
    assert {path: leaf.what for path, leaf in leaves(STATE).items()} == {
        "state": "dict",
        "state['step']": "int 7",
        "state['momentum']": "dict",
        "state['momentum']['w1']": "float64[4]",
        "state['momentum']['w2']": "float32[2, 3]",
        "state['names']": "list of 2",
        "state['names'][0]": "str 'a'",
        "state['names'][1]": "str 'b'",
        "state['text']": "str of 102 characters",
        "state['pair']": "tuple of 2",
        "state['pair'][0]": "int64 3",
        "state['pair'][1]": "NoneType None",
    }


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("state['momentum']['w1']", {"momentum": {**STATE["momentum"], "w1": np.arange(4.0) + 1}}),
        ("state['text']", {"text": "y" * 100}),
        ("state", {"more": 1}),
        ("state['momentum']", {"momentum": dict(reversed(STATE["momentum"].items()))}),
    ],
)
def test_only_the_part_that_differs_has_another_digest(path: str, other: dict[str, Any]) -> None:
    ours, theirs = leaves(STATE), leaves({**STATE, **other})
    assert [p for p in ours if p in theirs and ours[p] != theirs[p]] == [path]


def test_arrays_that_differ_in_their_order_alone_say_so() -> None:
    in_c, in_fortran = leaves({"w": np.zeros((2, 3))}), leaves({"w": np.zeros((3, 2)).T})
    assert in_c["state['w']"].what == "float64[2, 3]"
    assert in_fortran["state['w']"].what == "float64[2, 3] in Fortran order"
    assert in_c["state"] == in_fortran["state"]


def test_parts_that_are_one_object_on_one_rank_alone_say_so() -> None:
    w, layers = np.arange(4.0), [[1]]
    tied = leaves({"e": w, "d": w, "x": layers, "y": layers})
    untied = leaves({"e": w, "d": w.copy(), "x": layers, "y": [[1]]})
    differing = {path: leaf.what for path, leaf in tied.items() if leaf != untied[path]}
    assert differing == {
        "state['d']": "the same object as state['e']",
        "state['y']": "the same object as state['x']",
    }
    assert untied["state['d']"].what == "float64[4]"


def test_a_long_list_is_one_part() -> None:
    state = {"few": [1, 2], "many": list(range(10 * MAX_LEAVES))}
    paths = list(leaves(state))
    assert paths == ["state", "state['few']", "state['many']", "state['few'][0]", "state['few'][1]"]
    other = {**state, "many": [*range(10 * MAX_LEAVES - 1), 0]}
    assert leaves(state)["state['many']"] != leaves(other)["state['many']"]


def test_the_parts_of_any_state_fit_a_message() -> None:
    key = "k" * 1000
    state = {f"{number}{key}": {key: np.empty((0,) * 30)} for number in range(MAX_LEAVES)}
    found = leaves_of(pack_state(state))
    nested = leaves_of(pack_state([[number, key] for number in range(MAX_LEAVES // 4)]))
    for parts in (found, nested):
        assert len(parts) <= MAX_LEAVES
        sent = decode_body(encode(Leaves(1, parts))[4:])
        assert isinstance(sent, Leaves)
        assert len(sent.leaves) == len(parts)
