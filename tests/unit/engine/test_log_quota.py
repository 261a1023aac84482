"""The log's bytes are counted from sizes alone, so that all ranks stop at the same position."""

import gc
import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ftcomm.diagnostics.logs import JobLogger
from ftcomm.engine.log_quota import LogQuota
from ftcomm.errors import LogLimitError
from ftcomm.protocol.position import START, Position
from ftcomm.recovery.unasked_calls import UnaskedCalls
from ftcomm.requests.request import CallOptions, Request
from tests.helpers.group import builder


@dataclass
class Rank:
    """Parts of an engine that a quota and a call factory read."""

    rank: int = 0
    world_size: int = 4
    replicas: int = 2
    log_limit: int = 1000
    position: Position = START
    unasked: UnaskedCalls = field(default_factory=UnaskedCalls)


def result_of(nbytes: int, rank: int = 0, world_size: int = 4) -> Request:
    factory = builder(rank=rank, world_size=world_size)
    return factory.allreduce(np.zeros(nbytes, np.uint8), CallOptions(), "train.py:1")


def quota(**changes: Any) -> LogQuota:
    rank: Any = Rank(**changes)
    return LogQuota(rank)


def charge(account: LogQuota, call: Request) -> None:
    """Charge a result as a communicator does around a successful call."""
    account.check(call.form.nbytes)
    account.completed(call.form.nbytes)


def test_a_result_counts_with_the_share_of_it_that_a_worker_keeps() -> None:
    account = quota()
    charge(account, result_of(100))
    assert account.nbytes == 50


def test_few_ranks_keep_everything() -> None:
    account = quota(world_size=2, replicas=3)
    charge(account, result_of(100, world_size=2))
    assert account.nbytes == 100


def test_an_allgather_counts_as_large_as_its_result() -> None:
    account = quota()
    charge(account, builder(world_size=4).allgather(np.zeros(10, np.uint8), "train.py:1"))
    assert account.nbytes == 20


def test_the_limit_is_reached_before_anything_is_counted_and_the_error_says_where() -> None:
    account = quota(rank=3, position=Position(0, 2, 7))
    charge(account, result_of(2000))
    with pytest.raises(LogLimitError) as caught:
        charge(account, result_of(2))
    assert (account.nbytes, caught.value.rank, caught.value.position) == (1000, 3, "2.7")


def test_all_ranks_reach_the_limit_at_the_same_call() -> None:
    sizes, stops = [300, 700, 640, 200, 900], []
    for rank in range(4):
        account = quota(rank=rank)
        for number, nbytes in enumerate(sizes):
            try:
                charge(account, result_of(nbytes, rank))
            except LogLimitError:
                stops.append(number)
                break
    assert stops == [4, 4, 4, 4]


def test_the_prelude_and_each_version_count_from_zero() -> None:
    account = quota()
    charge(account, result_of(400))
    account.new_version()  # a restarted rank may have skipped its prelude: it counts the same
    charge(account, result_of(1000))
    assert account.nbytes == 500
    account.new_version()
    assert account.nbytes == 0


def test_a_call_that_raises_locally_is_not_counted() -> None:
    account = quota()
    account.check(result_of(1000).form.nbytes)
    assert account.nbytes == 0


def test_rank_0_says_once_on_the_console_that_the_log_is_half_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[tuple[int, str]] = []
    for rank in (0, 1):
        account = quota(rank=rank)
        monkeypatch.setattr(
            JobLogger, "warn_aloud", lambda _, text, *numbers, rank=rank: said.append((rank, text))
        )
        for _ in range(2):
            charge(account, result_of(1002))
            account.new_version()
    assert [(rank, "more than half of the limit" in text) for rank, text in said] == [(0, True)]


def test_a_counter_sees_what_is_counted_and_keeps_nothing_alive() -> None:
    account = quota()
    read = account.counter()
    charge(account, result_of(100))
    seen = [read()]
    del account
    gc.collect()
    assert [*seen, read()] == [50, 0]


def test_each_version_warns_once_at_half_of_the_limit(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("ftcomm"), "propagate", True)
    account = quota()
    said: list[Any] = []
    for nbytes in (1000, 2, 2):
        charge(account, result_of(nbytes))
        said.append(len(caplog.records))
    account.new_version()
    charge(account, result_of(1002))
    assert (said, len(caplog.records)) == ([0, 1, 1], 2)
