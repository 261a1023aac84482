"""Reductions that the compiled core repeats by itself: what it completes, and what it leaves."""

import signal
import threading
from _thread import get_ident
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ranks_of_a_host as harness

from ftcomm.core.segment import SMALL_BYTES
from ftcomm.protocol.position import MAX_SEQNO
from ftcomm.recovery.archive.results import ENTRY_BYTES
from ftcomm.recovery.unasked_calls import (
    BYTES,
    CALLS,
    EPOCH,
    KEPT_ROOM,
    LOG_ROOM,
    NANOSECONDS,
    SEQNO,
    STEP,
    UNTIL_NS,
    VERSION,
    UnaskedCalls,
)

pytestmark = harness.needs_a_core
FOREVER = (1 << 63) - 1
FLOATS = np.dtype(np.float32)
SHAPE = (2, 3)
NBYTES = 24
SHARE = 10
CALL = SimpleNamespace(called="a call")


class Rank:
    """One rank's form of sums of `SHAPE`, which its own thread repeats."""

    def __init__(self, core: Any) -> None:
        self.core, self.unasked = core, UnaskedCalls()
        words = self.words = self.unasked.words
        words[UNTIL_NS] = words[KEPT_ROOM] = words[LOG_ROOM] = FOREVER
        for word, value in zip(range(EPOCH, STEP + 1), harness.POSITION, strict=True):
            words[word] = value
        self.form = core.form(harness.SUFFIX, np.add, FLOATS, NBYTES)

    def prepare(self) -> bool:
        shared = self.words, self.unasked.calls, self.unasked.holder, (get_ident(),)
        done: bool = self.form.prepare(CALL, np.empty(SHAPE, FLOATS), SHARE, *shared)
        return done

    @property
    def state(self) -> tuple[Any, ...]:
        """All that a call that is not completed must leave as it was."""
        return self.words.tolist(), list(self.unasked.calls), dict(self.unasked.holder)


def ones(times: float = 1.0) -> Any:
    return np.full(SHAPE, times, FLOATS)


@pytest.fixture
def host() -> harness.Host:
    """Two ranks with compiled cores."""
    harness.require_compiled()
    return harness.Host("compiled", 2)


@pytest.fixture
def alone() -> Rank:
    """A group of one: nothing is waited for, and this test's thread calls."""
    harness.require_compiled()
    rank = Rank(harness.Host("compiled", 1).cores[0])
    assert rank.prepare()
    return rank


def test_ranks_complete_call_after_call(host: harness.Host) -> None:
    def act(number: int, core: Any) -> Any:
        rank = Rank(core)
        rank.prepare()
        outs = [ones() for _ in range(3)]
        done = [rank.form.repeat(ones(number + k), out) for k, out in enumerate(outs)]
        assert all(one is out for one, out in zip(done, outs, strict=True))
        raw = rank.form.repeat(ones(9.0), None)
        return [float(out[1, 2]) for out in outs], np.frombuffer(raw, FLOATS)[0], rank

    for sums, viewed, rank in host.together(act):
        assert (sums, viewed) == ([1.0, 3.0, 5.0], 18.0)
        assert rank.unasked.calls[::2] == [CALL] * 4
        logged = [np.frombuffer(raw, FLOATS).tolist() for raw in rank.unasked.calls[1::2]]
        assert logged == [[value] * 6 for value in (1.0, 3.0, 5.0, 18.0)]
        moved = rank.words[SEQNO] - harness.POSITION[3]
        rooms = FOREVER - rank.words[KEPT_ROOM], FOREVER - rank.words[LOG_ROOM]
        assert (moved, *rooms) == (4, 4 * (NBYTES + ENTRY_BYTES), 4 * SHARE)
        assert (rank.words[CALLS], rank.words[BYTES]) == (4, 4 * NBYTES)
        assert rank.words[NANOSECONDS] > 0
        assert rank.unasked.holder == {}


def test_a_rank_that_asks_meets_one_that_does_not() -> None:
    """With either core, by the header that a call of the same position has."""
    harness.require_compiled()
    host = harness.Host("mixed", 2)

    def act(number: int, core: Any) -> Any:
        rank, out = Rank(core), ones()
        if rank.prepare():
            assert rank.form.repeat(ones(2.0), out) is out
        else:
            assert rank.form.repeat(ones(2.0), out) is None
            assert rank.form.run(ones(2.0), out, *harness.POSITION) == 0
        return out.tolist()

    assert host.together(act) == [ones(4.0).tolist()] * 2


def test_a_result_may_replace_its_input(alone: Rank) -> None:
    x = ones(3.0)
    assert alone.form.repeat(x, x) is x
    assert x.tolist() == ones(3.0).tolist()


WORDS_IN_THE_WAY = {
    "nobody may": (UNTIL_NS, 0),
    "no more positions": (SEQNO, MAX_SEQNO),
    "budget of R15": (KEPT_ROOM, NBYTES + ENTRY_BYTES - 1),
    "limit of the log": (LOG_ROOM, SHARE - 1),
}


@pytest.mark.parametrize("what", WORDS_IN_THE_WAY)
def test_a_call_is_not_made_where_a_word_is_in_the_way(alone: Rank, what: str) -> None:
    word, value = WORDS_IN_THE_WAY[what]
    alone.words[word] = value
    before, out = alone.state, ones(7.0)
    assert alone.form.repeat(ones(), out) is None
    assert (alone.state, out.tolist()) == (before, ones(7.0).tolist())


def test_the_last_room_is_used(alone: Rank) -> None:
    alone.words[KEPT_ROOM], alone.words[LOG_ROOM] = NBYTES + ENTRY_BYTES, SHARE
    alone.words[SEQNO] = MAX_SEQNO - 1
    out = ones(7.0)
    assert alone.form.repeat(ones(), out) is out
    assert (alone.words[KEPT_ROOM], alone.words[LOG_ROOM]) == (0, 0)


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


class Mine(np.ndarray[Any, Any]):
    """A class of a user's."""


OTHER_ARRAYS = {
    "list": (ones().tolist(), ones()),
    "dtype": (ones().astype(np.float64), ones()),
    "byte order": (ones().astype(">f4"), ones()),
    "shape": (ones().reshape(3, 2), ones()),
    "dimensions": (ones().reshape(6), ones()),
    "gaps": (np.ones((2, 6), FLOATS)[:, ::2], ones()),
    "class": (ones().view(Mine), ones()),
    "not aligned": (np.ones(NBYTES + 1, np.uint8)[1:].view(FLOATS).reshape(SHAPE), ones()),
    "dtype of out": (ones(), ones().astype(np.float64)),
    "shape of out": (ones(), ones().reshape(3, 2)),
    "gaps in out": (ones(), np.ones((2, 6), FLOATS)[:, ::2]),
    "read-only out": (ones(), read_only(ones())),
    "class of out": (ones(), ones().view(Mine)),
}


@pytest.mark.parametrize("what", OTHER_ARRAYS)
def test_other_arrays_are_left_to_the_slow_path(alone: Rank, what: str) -> None:
    before = alone.state
    assert alone.form.repeat(*OTHER_ARRAYS[what]) is None
    assert alone.state == before


def test_a_call_inside_of_another_is_not_made(alone: Rank) -> None:
    alone.unasked.holder[0] = (get_ident(),)
    before = alone.state
    assert alone.form.repeat(ones(), None) is None
    assert alone.state == before


def test_another_thread_is_left_to_the_slow_path(alone: Rank) -> None:
    before = alone.state
    assert harness.together(lambda: alone.form.repeat(ones(), None)) == [None]
    assert alone.state == before


def test_a_core_that_was_interrupted_makes_no_call(alone: Rank) -> None:
    before = alone.state
    alone.core.interrupt()
    assert alone.form.repeat(ones(), None) is None
    assert alone.state == before


class Waiting:
    """Rank 0 in a call, which waits for rank 1: this test."""

    def __init__(self, host: harness.Host) -> None:
        self.rank, self.out, self.host = Rank(host.cores[0]), ones(7.0), host
        self.before: Any = None
        self.call = harness.Background(self._repeat)
        harness.await_condition(lambda: host.cores[0].missing() == (1,))

    def _repeat(self) -> Any:
        self.rank.prepare()
        self.before = self.rank.state
        return self.rank.form.repeat(ones(), self.out)

    def answer(self, position: tuple[int, ...] = harness.POSITION) -> int:
        form = self.host.cores[1].form(harness.SUFFIX, np.add, FLOATS, NBYTES)
        status: int = form.run(ones(), ones(), *position)
        return status


def test_a_call_in_flight_is_known_and_holds_the_lock(host: harness.Host) -> None:
    waiting = Waiting(host)
    unasked = waiting.rank.unasked
    assert (unasked.is_in_flight, unasked.call) == (True, "a call")
    assert len(unasked.holder) == 1
    waiting.answer()
    assert waiting.call.result() is waiting.out
    assert (unasked.is_in_flight, unasked.holder) == (False, {})


def test_what_is_heard_during_a_call_leaves_its_completion_to_who_asks(host: harness.Host) -> None:
    """All ranks have made the call, and this one must not move any more (R2)."""
    waiting = Waiting(host)
    waiting.rank.words[UNTIL_NS] = 0
    assert waiting.answer() == 0
    raw, epoch = waiting.call.result()
    assert (np.frombuffer(raw, FLOATS).tolist(), epoch) == ([2.0] * 6, harness.POSITION[0])
    assert waiting.out.tolist() == ones(7.0).tolist()
    waiting.rank.words[UNTIL_NS] = FOREVER
    assert waiting.rank.words[NANOSECONDS] > 0, "its wait counts"
    waiting.rank.words[NANOSECONDS] = 0
    assert waiting.rank.state == waiting.before


def test_a_process_that_did_not_run_for_too_long_asks(host: harness.Host) -> None:
    """R1: the clock is read when all have come."""
    waiting = Waiting(host)
    waiting.rank.words[UNTIL_NS] = 1
    waiting.answer()
    assert isinstance(waiting.call.result(), tuple)


def test_calls_before_may_be_absorbed_during_a_call(host: harness.Host) -> None:
    def act(number: int, core: Any) -> Any:
        rank = Rank(core)
        rank.prepare()
        rank.form.repeat(ones(), None)
        if number:
            harness.await_condition(absorbed.is_set)
        else:
            taker = harness.Background(lambda: absorb_beside(rank))
        result = rank.form.repeat(ones(), None)
        return rank, result, None if number else taker.result()

    absorbed = threading.Event()

    def absorb_beside(rank: Rank) -> Any:
        harness.await_condition(lambda: rank.core.missing() == (1,))
        taken = rank.unasked.absorb()
        absorbed.set()
        return taken

    (rank, _, taken), _ = host.together(act)
    assert taken == ["a call"]
    assert [type(one) for one in rank.unasked.calls] == [SimpleNamespace, bytes]


def test_an_interrupted_call_leaves_everything_as_it_was(host: harness.Host) -> None:
    waiting = Waiting(host)
    waiting.host.cores[0].interrupt()
    assert waiting.call.result() is None
    assert (waiting.rank.state, waiting.out.tolist()) == (waiting.before, ones(7.0).tolist())


def test_ctrl_c_in_a_call_leaves_it_incomplete_and_ends_the_use_of_the_core(
    host: harness.Host,
) -> None:
    """The others may have completed it."""
    rank, main = Rank(host.cores[0]), get_ident()
    rank.prepare()
    before = rank.state

    def send() -> None:
        harness.await_condition(lambda: rank.core.sleeps_since() > 0)
        signal.pthread_kill(main, signal.SIGINT)

    sender = harness.Background(send)
    with pytest.raises(KeyboardInterrupt):
        rank.form.repeat(ones(), None)
    sender.result()
    assert rank.state == before
    assert rank.form.repeat(ones(), None) is None


@pytest.mark.parametrize("field", range(5))
def test_a_rank_at_another_position_is_named(host: harness.Host, field: int) -> None:
    """R7."""
    waiting, position = Waiting(host), list(harness.POSITION)
    position[field] += 1
    waiting.answer(tuple(position))
    assert waiting.call.result() == 2
    assert (waiting.rank.state, waiting.out.tolist()) == (waiting.before, ones(7.0).tolist())


def test_a_prelude_has_a_negative_version(host: harness.Host) -> None:
    def act(number: int, core: Any) -> Any:
        rank, position = Rank(core), (3, 0, -1, 5, 0)
        rank.words[VERSION] = -1
        rank.prepare()
        if number:
            return rank.form.run(ones(), ones(), *position) == 0
        return rank.form.repeat(ones(), None) is not None

    assert host.together(act) == [True, True]


def test_only_small_reductions_are_prepared_and_once(alone: Rank) -> None:
    shared = alone.words, alone.unasked.calls, alone.unasked.holder, ()
    large = SMALL_BYTES + 4
    forms = [
        alone.form,
        alone.core.form(harness.SUFFIX, None, None, 8),
        alone.core.form(harness.SUFFIX, np.add, FLOATS, 0),
        alone.core.form(harness.SUFFIX, np.add, FLOATS, large),
    ]
    for form in forms:
        with pytest.raises(ValueError, match="cannot be repeated"):
            form.prepare(CALL, ones(), SHARE, *shared)


def test_a_form_that_was_not_prepared_repeats_nothing(alone: Rank) -> None:
    form = alone.core.form(harness.SUFFIX, np.add, FLOATS, NBYTES)
    assert form.repeat(ones(), None) is None
    with pytest.raises(TypeError, match="2 arguments"):
        form.repeat(ones())
