"""Calls that give each rank a result of its own: local mistakes, and the log by size."""

from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.protocol.signature import Kind, LogMode, Signature, is_compatible, logged_as
from ftcomm.requests.arguments import WHOLE_BYTES
from ftcomm.requests.contributed_builder import ContributedBuilder
from ftcomm.requests.request import CallOptions, Request
from tests.helpers.group import builder

SITE = "t.py:7"
COPIES = 2  # that other ranks keep of a result
SMALL, LARGE = np.ones((3, 2)), np.ones((3, WHOLE_BYTES))


def built(**changes: Any) -> ContributedBuilder:
    return ContributedBuilder(builder(**changes), np.empty, COPIES)


def reduced(x: Any, counts: Any = None, *, prelude: bool = False, **options: Any) -> Request:
    return built().reduce_scatter(x, CallOptions(**options, counts=counts), SITE, prelude=prelude)


def log_of(request: Request) -> LogMode:
    return Signature.decode(request.form.signature).log


@pytest.mark.parametrize(
    ("counts", "error", "words"),
    [
        ([1, 2], ValueError, "counts must be 3 numbers from 0 on"),
        ([1, 3, -1], ValueError, r"got \[1, 3, -1\]"),
        ([1, 1, 2], ValueError, "counts add up to 4, x has 3 rows"),
        ([1.5, 1, 0.5], TypeError, "counts must be whole numbers"),
        (3, TypeError, "counts must be whole numbers"),
    ],
)
def test_counts_that_do_not_add_up_are_refused(
    counts: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        reduced(SMALL, counts)


def test_what_has_no_equal_parts_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="4 rows are no multiple of 3 ranks; pass counts="):
        reduced(np.ones(4))
    with pytest.raises(ValueError, match="4 rows are no multiple of 3 ranks; use alltoallv"):
        built().alltoall(np.ones(4), CallOptions(), SITE, prelude=False)
    with pytest.raises(ValueError, match="reduce_scatter cuts an array along its first dimension"):
        reduced(3.0)


@pytest.mark.parametrize(
    ("arrays", "error", "words"),
    [
        (SMALL, TypeError, "alltoallv takes a list of arrays, one for each rank, not an ndarray"),
        (None, TypeError, "not None"),
        ([SMALL, SMALL], ValueError, "needs one part for each of 3 ranks, got 2"),
        (
            [SMALL, SMALL, np.ones(2)],
            ValueError,
            r"part 2 is float64\[2\], part 0 is float64\[3, 2",
        ),
        ([SMALL, SMALL, 1.0], ValueError, "part 2 has no dimension; give it one"),
    ],
)
def test_lists_that_do_not_fit_are_refused(arrays: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        built().alltoallv(arrays, CallOptions(), SITE, prelude=False)


# --- the log ------------------------------------------------------------------------------------


def test_the_log_follows_from_the_size_where_all_ranks_know_it() -> None:
    assert log_of(reduced(SMALL)) is LogMode.WHOLE
    assert log_of(reduced(LARGE)) is LogMode.CONTRIBUTIONS
    assert log_of(reduced(SMALL, log="contributions")) is LogMode.CONTRIBUTIONS
    assert log_of(reduced(LARGE, log="whole")) is LogMode.WHOLE


def test_what_all_ranks_would_log_of_an_exchange_is_the_input_of_all() -> None:
    options, rows = CallOptions(), WHOLE_BYTES // 8 // 3
    at_most = np.ones(rows // 3 * 3)
    assert log_of(built().alltoall(at_most, options, SITE, prelude=False)) is LogMode.WHOLE
    more = np.ones(rows // 3 * 3 + 3)
    assert log_of(built().alltoall(more, options, SITE, prelude=False)) is LogMode.CONTRIBUTIONS


def test_where_ranks_tell_each_other_their_sizes_the_run_chooses() -> None:
    request = built().alltoallv([SMALL] * 3, CallOptions(), SITE, prelude=False)
    assert log_of(request) is LogMode.BY_SIZE
    found = [Signature.decode(raw).log for raw in logged_as(request.form.signature)]
    assert found == [LogMode.WHOLE, LogMode.CONTRIBUTIONS]
    assert logged_as(reduced(LARGE).form.signature) == (reduced(LARGE).form.signature,)


def test_before_the_first_load_all_is_logged_whole() -> None:
    assert log_of(reduced(LARGE, prelude=True)) is LogMode.WHOLE
    request = built().alltoallv([SMALL] * 3, CallOptions(), SITE, prelude=True)
    assert log_of(request) is LogMode.WHOLE
    with pytest.raises(ValueError, match=r"is for calls after load_checkpoint\(\)"):
        reduced(SMALL, prelude=True, log="contributions")
    with pytest.raises(ValueError, match="log='copies' is for calls after load_checkpoint"):
        reduced(SMALL, prelude=True, log="copies")


def test_a_log_that_there_is_not_is_refused_by_name() -> None:
    known = "use 'whole', 'contributions', 'copies', or None"
    with pytest.raises(ValueError, match=f"no log is called 'part'; {known}"):
        reduced(SMALL, log="part")


def test_results_of_which_copies_are_kept_count_with_all_their_copies() -> None:
    options = CallOptions(log="copies")
    largest = [
        (reduced(SMALL, [0, 1, 2], log="copies"), 2 * 2 * 8),
        (built().reduce(SMALL, options, SITE, prelude=False), SMALL.nbytes),
        (built().gather(SMALL, options, SITE, prelude=False), 3 * SMALL.nbytes),
        (built().alltoall(SMALL, options, SITE, prelude=False), SMALL.nbytes),
    ]
    for request, nbytes in largest:
        assert log_of(request) is LogMode.COPIES
        assert request.form.nbytes == (1 + COPIES) * nbytes
    assert log_of(built().alltoallv([SMALL] * 3, options, SITE, prelude=False)) is LogMode.COPIES


def test_a_function_of_whole_arrays_is_logged_whole() -> None:
    product = ftcomm.reduction(np.matmul, name="matmul", elementwise=False, commutative=False)
    square = np.ones((300, 300))
    assert log_of(reduced(square, op=product)) is LogMode.WHOLE
    with pytest.raises(ValueError, match="was declared to need whole arrays; leave log= out"):
        reduced(square, op=product, log="contributions")


def test_an_algorithm_of_whole_results_is_refused_where_each_rank_gets_its_own() -> None:
    with pytest.raises(ValueError, match="algorithm recursive_doubling gives every rank the whole"):
        reduced(LARGE, algorithm="recursive_doubling")
    assert log_of(reduced(SMALL, algorithm="recursive_doubling")) is LogMode.WHOLE


def test_a_reduce_by_another_algorithm_than_the_ring_is_an_allreduce() -> None:
    def reduce_log(**options: Any) -> LogMode:
        return log_of(built().reduce(LARGE, CallOptions(root=0, **options), SITE, prelude=False))

    assert reduce_log() is LogMode.CONTRIBUTIONS
    assert reduce_log(algorithm="ring") is LogMode.CONTRIBUTIONS
    assert reduce_log(algorithm="recursive_doubling") is LogMode.WHOLE


# --- what ranks compare -------------------------------------------------------------------------


def test_ranks_that_cut_alike_agree_and_others_do_not() -> None:
    equal = reduced(LARGE).form.signature
    assert reduced(LARGE, [1, 1, 1]).form.signature == equal
    assert reduced(LARGE, [0, 1, 2]).form.signature != equal
    assert reduced(LARGE, [0, 1, 2]).form.signature != reduced(LARGE, [2, 1, 0]).form.signature


def test_what_an_input_function_leaves_open_fits_any_log() -> None:
    known = builder().known(Kind.ALLTOALL, CallOptions())
    for log in (None, "whole", "contributions"):
        x = built().alltoall(LARGE, CallOptions(log=log), SITE, prelude=False)
        assert is_compatible(known, x.form.signature)
    asked = builder().known(Kind.ALLTOALL, CallOptions(log="whole"))
    x = built().alltoall(LARGE, CallOptions(log="contributions"), SITE, prelude=False)
    assert not is_compatible(asked, x.form.signature)


def test_only_a_lent_input_shares_the_users_memory() -> None:
    def form(**options: Any) -> Any:
        return built().alltoall(LARGE, CallOptions(**options), SITE, prelude=False).form

    assert form(copy=False).contributed.lent
    assert not form().contributed.lent
    joined = built().alltoallv([SMALL] * 3, CallOptions(), SITE, prelude=False)
    assert not np.shares_memory(joined.sendbuf, SMALL)
    assert joined.sendbuf.tolist() == [1.0] * 18
