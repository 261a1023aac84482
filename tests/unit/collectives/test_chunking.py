"""Pieces: nobody takes much memory because a peer says that much will come."""

import itertools

import pytest

from ftcomm.collectives.chunking import FIRST_PIECE_BYTES, STATE_LIMIT, pieces


@pytest.mark.parametrize(
    "nbytes", [1, FIRST_PIECE_BYTES, FIRST_PIECE_BYTES + 1, 10**9, STATE_LIMIT]
)
def test_no_piece_is_larger_than_all_that_came_before_and_there_are_few(nbytes: int) -> None:
    cut = list(pieces(nbytes))
    assert (cut[0].start, cut[-1].stop) == (0, nbytes)
    assert all(before.stop == piece.start for before, piece in itertools.pairwise(cut))
    assert all(0 < p.stop - p.start <= max(p.start, FIRST_PIECE_BYTES) for p in cut)
    assert len(cut) <= 17


def test_nothing_is_one_piece() -> None:
    assert list(pieces(0)) == [slice(0, 0)]


def test_all_but_the_last_are_the_same_whatever_the_size() -> None:
    """So ranks whose states differ in size go through the same ones."""
    small, large = list(pieces(FIRST_PIECE_BYTES * 5)), list(pieces(STATE_LIMIT))
    assert small[:-1] == large[: len(small) - 1]
