"""Impairments is a function of the seed, the bytes and the clock."""

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.network_faults.impairments import FAIR, FIN, RST, ImpairedStream, Impairments, Piece

DATA = bytes(range(256)) * 4
CHUNKS = st.lists(st.integers(0, len(DATA)), max_size=8).map(
    lambda cuts: [DATA[a:b] for a, b in pairwise([0, *sorted(cuts), len(DATA)])]
)


def pour(stream: ImpairedStream, chunks: list[bytes], impairments: Impairments) -> list[Piece]:
    return [piece for chunk in chunks for piece in stream.take(chunk, impairments, now=0.0)]


def places_changed(got: bytes) -> list[int]:
    return [place for place, (a, b) in enumerate(zip(DATA, got, strict=True)) if a != b]


def test_fair_impairments_changes_nothing() -> None:
    assert ImpairedStream("s").take(DATA, FAIR, now=3.0) == [Piece(3.0, DATA)]


@given(CHUNKS, st.sampled_from([(300, 50), (300, 0), (5, 50), (5, 0)]))
def test_the_same_bits_are_flipped_however_the_bytes_arrive(
    chunks: list[bytes], usual: tuple[int, int]
) -> None:
    flip_every, slice_bytes = usual
    impairments = Impairments(flip_every=flip_every, flips=(0, 1023), slice_bytes=slice_bytes)
    whole, parts = ImpairedStream("s"), ImpairedStream("s")
    first = b"".join(piece.data for piece in whole.take(DATA, impairments, now=0.0))
    again = b"".join(piece.data for piece in pour(parts, chunks, impairments))
    assert (first, whole.flipped) == (again, parts.flipped)
    assert places_changed(first) == sorted(whole.flipped)
    assert {0, 1023} < set(whole.flipped)


def test_each_flip_is_of_one_bit_and_about_as_frequent_as_asked_for() -> None:
    stream = ImpairedStream("s")
    got = b"".join(piece.data for piece in stream.take(DATA, Impairments(flip_every=64), now=0.0))
    changed = [a ^ b for a, b in zip(DATA, got, strict=True) if a != b]
    assert {x & (x - 1) for x in changed} == {0}
    assert 8 <= len(changed) <= 32


def test_another_seed_is_other_impairments() -> None:
    impairments = Impairments(flip_every=300)
    streams = [ImpairedStream(seed) for seed in "ab"]
    for stream in streams:
        stream.take(DATA, impairments, now=0.0)
    assert streams[0].flipped != streams[1].flipped


@given(CHUNKS, st.integers(1, 100))
def test_pieces_are_small_and_end_where_the_seed_says(chunks: list[bytes], most: int) -> None:
    whole = ImpairedStream("s").take(DATA, Impairments(slice_bytes=most), now=0.0)
    parts = pour(ImpairedStream("s"), chunks, Impairments(slice_bytes=most))
    assert b"".join(piece.data for piece in parts) == DATA
    assert max(len(piece.data) for piece in whole + parts) <= most

    def ends(pieces: list[Piece]) -> set[int]:
        return set(accumulate(len(piece.data) for piece in pieces))

    assert ends(whole) <= ends(parts)


@given(CHUNKS, st.integers(0, len(DATA)))
def test_a_cut_comes_behind_its_byte_and_nothing_behind_the_cut(
    chunks: list[bytes], place: int
) -> None:
    pieces = pour(ImpairedStream("s"), chunks, Impairments(cut_after=place, cut_by=RST))
    first = next(i for i, piece in enumerate(pieces) if piece.cut)
    assert pieces[first].cut == RST
    assert b"".join(piece.data for piece in pieces) == DATA[:place]
    assert not any(piece.data for piece in pieces[first:])


def test_bytes_wait_for_the_distance_and_for_the_narrow_place() -> None:
    stream = ImpairedStream("s")
    impairments = Impairments(latency_s=1.0, bytes_per_s=10.0)
    first = stream.take(bytes(20), impairments, now=0.0)
    second = stream.take(bytes(10), impairments, now=0.5)
    late = stream.take(bytes(10), impairments, now=100.0)
    assert [piece.due_at for piece in first + second + late] == [3.0, 4.0, 102.0]


def test_jitter_does_not_change_the_order_and_stays_below_its_limit() -> None:
    stream = ImpairedStream("s")
    due = [
        piece.due_at
        for _ in range(100)
        for piece in stream.take(b"x", Impairments(jitter_s=0.5), now=0.0)
    ]
    assert due == sorted(due)
    assert 0.25 < due[-1] <= 0.5
    assert len(set(due)) > 1


def test_a_direction_that_has_lost_bytes_carries_none_again() -> None:
    stream = ImpairedStream("s")
    assert stream.take(DATA, Impairments(swallow=True), now=0.0) == []
    assert stream.take(DATA, Impairments(cut_after=9, cut_by=FIN), now=0.0) == []
    assert (stream.deaf, stream.taken) == (True, 2 * len(DATA))
