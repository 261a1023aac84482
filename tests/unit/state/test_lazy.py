"""Content of a lazy checkpoint: the user's arrays, in containers of its own."""

import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.errors import StateChangedError
from ftcomm.state.lazy import LazyState
from ftcomm.state.serializer import pack_state, unpack_state


def some_state() -> dict[str, Any]:
    return {"w": [np.arange(6.0).reshape(2, 3), (1, "a")], "n": np.float32(2), "b": b"x", 3: None}


def test_it_packs_as_a_copied_one_does() -> None:
    assert LazyState(some_state()).raw() == pack_state(some_state())


def test_the_user_may_put_other_things_into_a_dict_or_a_list_at_once() -> None:
    state = some_state()
    lazy, before = LazyState(state), pack_state(state)
    state["w"][0] = state["w"][1]
    del state["n"]
    assert lazy.raw() == before


def test_nothing_is_copied_before_somebody_asks() -> None:
    state = some_state()
    lazy = LazyState(state)
    state["w"][0][0, 0] = 7  # against the promise: this is how it is seen
    raw = lazy.raw()
    assert raw is not None
    assert unpack_state(raw)["w"][0][0, 0] == 7


def test_what_was_packed_once_is_given_again_and_what_was_released_is_gone() -> None:
    state = some_state()
    lazy = LazyState(state)
    raw = lazy.raw()
    state["w"][0][:] = 0
    lazy.release()
    assert lazy.raw() is raw
    other = LazyState(state)
    other.release()
    assert other.raw() is None


@pytest.mark.parametrize(
    "state",
    [
        {1.5: 1},
        {(1, 2): 1},
        {2**64: 1},
        {np.int64(1): 1},
        {"\ud800": 1},
        OrderedDict({np.str_("a"): 1}),
        [object()],
        {"a": {2}},
        (bytearray(b"x"), memoryview(b"x")),
        [Counter("ab")],
        {"d": defaultdict(lambda: 0, a=1)},
        [{"d": (defaultdict(set),)}],
        {"d": defaultdict(int, a=defaultdict(np.float64))},
        ["\ud800"],
        [10**5000],
        [np.str_("a")],
        [np.datetime64("NaT")],
        [np.timedelta64(1, "s")],
        [np.void(b"x")],
        np.array([None]),
        np.array(["a"]),
        np.array(["NaT"], "datetime64[s]"),
        np.zeros(2, [("x", float)]),
        np.ma.array([1.0], mask=[True]),
    ],
)
def test_what_no_state_may_hold_is_refused_when_it_is_given(state: Any) -> None:
    """By the words of a state that is packed at once: no other rank will have to find it out."""
    with pytest.raises(TypeError, match="state") as packed:
        pack_state(state)
    with pytest.raises(TypeError) as held:
        LazyState(state)
    assert str(held.value) == str(packed.value)


class Slow(LazyState):
    """Packs when it is told to."""

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def _compare(self) -> None:
        self.begun.set()
        assert self.go_on.wait(60)


def test_releasing_waits_while_it_is_being_packed() -> None:
    """Seen to fail if `release` takes no lock: the user would write to what is being read."""
    slow = Slow(some_state())
    packing = threading.Thread(target=slow.raw)
    releasing = threading.Thread(target=slow.release)
    packing.start()
    assert slow.begun.wait(60)
    releasing.start()
    releasing.join(0.2)
    waits = releasing.is_alive()
    slow.go_on.set()
    assert waits
    packing.join()
    releasing.join()
    assert slow.raw() == pack_state(some_state())


# --- debug mode -------------------------------------------------------------------------------


def test_a_watched_state_names_the_array_that_was_written_to() -> None:
    state = some_state()
    lazy = LazyState(state, watched=True)
    lazy.check()
    state["w"][0][1, 2] = -1
    for look in (lazy.check, lazy.raw):
        with pytest.raises(StateChangedError, match=r"state\['w'\]\[0\] was written to"):
            look()


def test_a_watched_state_is_compared_also_after_it_was_packed() -> None:
    state = some_state()
    lazy = LazyState(state, watched=True)
    assert lazy.raw() == pack_state(some_state())
    state["w"][0][1, 2] = -1
    with pytest.raises(StateChangedError):
        lazy.check()
    lazy.release()
    lazy.check()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[ftcomm.Communicator]:
    monkeypatch.setenv("FTCOMM_VERIFY", "checkpoints")
    comm = ftcomm.init("none")
    comm.load_checkpoint()
    yield comm
    comm.abort("the test is over")


def test_alone_the_next_checkpoint_finds_it(watched: ftcomm.Communicator) -> None:
    w = np.zeros(3)
    assert watched.checkpoint({"w": w}, lazy=True) == 1
    w += 1
    with pytest.raises(StateChangedError, match=r"state\['w'\] was written to"):
        watched.checkpoint({"w": w}, lazy=True)
    assert watched.is_over


def test_who_takes_turns_with_two_arrays_breaks_no_promise(watched: ftcomm.Communicator) -> None:
    now, then = np.zeros(3), np.ones(3)
    for version in range(4):
        assert watched.checkpoint({"w": now}, lazy=version != 2) == version + 1
        now, then = then, now
        now += 1
