"""Small reductions that are repeated: the core completes them, and nothing else changes."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.api.persistent_calls import PersistentCalls
from ftcomm.core import which
from ftcomm.core.segment import SMALL_BYTES
from ftcomm.engine.persistent_request import PersistentRequest
from ftcomm.recovery.unasked_calls import CALLS, UnaskedCalls
from ftcomm.testing import local_group

RANKS = 2
CALLS_EACH = 40
VERSIONS = 3
# Calls with a deadline ask, and so does each behind a heartbeat, which is due after minutes.
SETTINGS = {"call_deadline": 0, "detect_within": 600}


def unasked_of(comm: ftcomm.Communicator) -> UnaskedCalls:
    return comm._session.engine.unasked


def log_of(comm: ftcomm.Communicator) -> Any:
    engine: Any = comm._session.engine
    return engine._core.log


@pytest.fixture(autouse=True)
def compiled_core() -> None:
    if which()[0] != "compiled":
        pytest.skip("the core in Python repeats no calls")


def on_both(body: Callable[[ftcomm.Communicator], Any]) -> list[Any]:
    with local_group(RANKS, settings=SETTINGS) as group:
        return list(group.run(body))


def test_most_calls_are_completed_unasked_and_all_are_counted() -> None:
    def body(comm: ftcomm.Communicator) -> Any:
        x, out = np.full(3, comm.rank + 1.0), np.empty(3)
        for _ in range(CALLS_EACH):
            assert comm.allreduce(x, out=out) is out
            assert out.tolist() == [3.0] * 3
        kind = comm.stats().kinds["allreduce"]
        quota = comm._session.quota.nbytes
        assert unasked_of(comm).forms
        return unasked_of(comm), kind.count, kind.nbytes, comm.seqno, quota

    for unasked, *counted in on_both(body):
        assert unasked.words[CALLS] > CALLS_EACH // 2
        assert not unasked.forms, "they keep the segment of an epoch that is over"
        assert counted == [CALLS_EACH, CALLS_EACH * 24, CALLS_EACH, CALLS_EACH * 24]


def test_copies_and_views_are_right_and_outlive_commits() -> None:
    def body(comm: ftcomm.Communicator) -> Any:
        comm.load_checkpoint()
        views: list[Any] = []
        for version in range(VERSIONS):
            for number in range(CALLS_EACH):
                x = np.full((2, 2), number + 100.0 * version)
                copy, view = comm.allreduce(x), comm.allreduce(x, copy=False)
                assert (copy == 2 * x).all()
                copy += 1
                views.append(view)
            comm.checkpoint(None)
        assert unasked_of(comm).words[CALLS] > 0
        return views

    for views in on_both(body):
        for index, view in enumerate(views):
            version, number = divmod(index, CALLS_EACH)
            assert (view == 2 * (number + 100.0 * version)).all()
            with pytest.raises(ValueError, match="WRITEABLE"):
                view.flags.writeable = True


def test_whatever_is_called_between_them_has_its_own_position() -> None:
    """Broadcasts change the step of all calls behind them, on every rank alike."""

    def body(comm: ftcomm.Communicator) -> Any:
        comm.load_checkpoint()
        got = []
        for number in range(CALLS_EACH):
            x = np.array([float(number)])
            got.append(float(comm.allreduce(x)[0]))
            if number % 3 == 0:
                got.append(float(comm.broadcast(x, root=number % RANKS)[0]))
            if number % 5 == 0:
                got.append(float(comm.allreduce(np.full(SMALL_BYTES, x[0]))[-1]))
            if number % 7 == 0:
                got.append(comm.iallreduce(x).wait().tolist())
            if number % 11 == 0:
                comm.barrier()
        held = [log_of(comm).get(position) is not None for position in log_of(comm).positions()]
        assert unasked_of(comm).words[CALLS] > CALLS_EACH // 2
        return got, comm.seqno, held.count(False)

    (one, *rest), (other, *others) = on_both(body)
    assert one == other
    assert rest == others
    assert rest[1] == 0


def warmed(comm: ftcomm.Communicator, x: Any) -> Callable[[Any], Any]:
    """A line whose sums the core completes."""

    def sum_of(x: Any) -> Any:
        return comm.allreduce(x)

    for _ in range(4):
        sum_of(x)
    assert unasked_of(comm).forms
    return sum_of


def test_a_call_in_which_something_is_heard_is_completed_by_who_asks() -> None:
    """All ranks have made it, so it is not made again, and counts once."""
    engines: dict[int, Any] = {}

    def body(comm: ftcomm.Communicator) -> Any:
        engines[comm.rank] = comm._session.engine
        sum_of = warmed(comm, np.ones(3))
        comm.barrier()
        before = comm.seqno, unasked_of(comm).words[CALLS], comm.stats().kinds["allreduce"].count
        if comm.rank == 1:
            hub = engines[0]._hub
            while hub.segment.core.missing() != (1,):
                os.sched_yield()
            with hub.lock:
                assert hub.core.log.unasked.is_in_flight
                hub.core.freeze()
        result = sum_of(np.ones(3)).tolist()
        behind = comm.seqno, unasked_of(comm).words[CALLS], comm.stats().kinds["allreduce"].count
        last = log_of(comm).get(log_of(comm).positions()[-1]).value.flat.tolist()
        return [b - a for a, b in zip(before, behind, strict=True)], result, last, comm.epoch

    asked, _ = on_both(body)
    assert asked == ([1, 0, 1], [2.0] * 3, [2.0] * 3, 1)


def test_a_mismatch_behind_them_names_both_lines_on_both_ranks() -> None:
    def body(comm: ftcomm.Communicator) -> str:
        sum_of = warmed(comm, np.ones(3))
        call = sum_of if comm.rank == 0 else lambda x: comm.allreduce(x, op="max")
        with pytest.raises(ftcomm.CollectiveMismatchError) as caught:
            call(np.ones(3))
        return str(caught.value)

    one, other = on_both(body)
    assert one.count("test_unasked_calls.py:") == other.count("test_unasked_calls.py:") == 2


@pytest.mark.parametrize(
    ("owner", "name", "index"),
    [(PersistentCalls, "_in_steps", 3), (PersistentRequest, "settle", 0)],
    ids=["before it asks", "while it asks"],
)
def test_a_call_that_a_handlers_error_leaves_is_made_again_in_the_next_epoch(
    owner: type, name: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may have completed it, so it must not be made again in this one."""
    engines: dict[int, Any] = {}
    raised: list[int] = []
    step = getattr(owner, name)

    def interrupted(self: Any, *arguments: Any, **options: Any) -> Any:
        if arguments[index] is not None and not raised:
            raised.append(1)
            raise TimeoutError("by a signal's handler")
        return step(self, *arguments, **options)

    def body(comm: ftcomm.Communicator) -> Any:
        engines[comm.rank] = comm._session.engine
        sum_of = warmed(comm, np.ones(3))
        comm.barrier()
        if comm.rank == 1:
            hub = engines[0]._hub
            while hub.segment.core.missing() != (1,):
                os.sched_yield()
            with hub.lock:
                monkeypatch.setattr(owner, name, interrupted)
                hub.core.freeze()
            return [sum_of(np.full(3, float(number))).tolist() for number in range(4)], comm.epoch
        try:
            first = sum_of(np.full(3, 0.0))
        except TimeoutError:
            first = sum_of(np.full(3, 0.0))
        rest = [sum_of(np.full(3, float(number))) for number in range(1, 4)]
        return [result.tolist() for result in (first, *rest)], comm.epoch

    (sums, epoch), others = on_both(body)
    assert raised
    assert sums == [[2.0 * number] * 3 for number in range(4)]
    assert (sums, epoch) == others
    assert epoch == 2


def test_a_call_behind_a_broadcast_asks_and_so_releases_its_result() -> None:
    """Else the results of broadcasts stay whole until something is heard (R3)."""

    def body(comm: ftcomm.Communicator) -> int:
        comm.load_checkpoint()
        one, large = np.ones(1), np.zeros(SMALL_BYTES)
        unproven = []
        for _ in range(CALLS_EACH):
            comm.broadcast(large, copy=False)
            comm.allreduce(one)
            unproven.append(len(log_of(comm)._unproven))
        return max(unproven)

    assert on_both(body) == [1, 1]
