"""Spans: a set of bytes, whose neighbours are one."""

from hypothesis import given
from hypothesis import strategies as st

from ftcomm.transport.address_ranges import Span, Spans

ROOM = 40
PARTS = st.sets(st.integers(0, ROOM - 1))


def spans_of(numbers: set[int]) -> list[Span]:
    """These numbers as spans, the fewest."""
    found: list[Span] = []
    for number in sorted(numbers):
        if found and found[-1].end == number:
            found[-1] = Span(found[-1].start, found[-1].nbytes + 1)
        else:
            found.append(Span(number, 1))
    return found


def numbers_of(spans: list[Span]) -> set[int]:
    return {number for span in spans for number in range(span.start, span.end)}


@given(st.permutations(range(ROOM)), st.integers(0, ROOM))
def test_neighbours_are_joined_in_whatever_order_they_come(order: list[int], count: int) -> None:
    spans = Spans(*(Span(number, 1) for number in order[:count]))
    assert (list(spans), spans.nbytes) == (spans_of(set(order[:count])), count)


@given(PARTS, st.integers(1, 9), st.booleans())
def test_the_first_span_that_has_room_is_cut_at_its_end(
    numbers: set[int], nbytes: int, from_the_end: bool
) -> None:
    spans = Spans(*spans_of(numbers))
    fitting = [span for span in spans_of(numbers) if span.nbytes >= nbytes]
    taken = spans.take(nbytes, from_the_end=from_the_end)
    if not fitting:
        assert taken is None
        taken = Span(0, 0)
    elif from_the_end:
        assert taken == Span(fitting[-1].end - nbytes, nbytes)
    else:
        assert taken == Span(fitting[0].start, nbytes)
    left = numbers - numbers_of([taken])
    assert (list(spans), spans.nbytes) == (spans_of(left), len(left))


@given(PARTS, st.integers(0, ROOM))
def test_what_is_shed_is_as_much_as_was_wanted_from_the_end(numbers: set[int], nbytes: int) -> None:
    spans = Spans(*spans_of(numbers))
    shed = numbers_of(spans.shed(nbytes))
    assert shed == set(sorted(numbers, reverse=True)[:nbytes])
    assert (list(spans), spans.nbytes) == (spans_of(numbers - shed), len(numbers - shed))


@given(PARTS, st.data())
def test_a_part_is_removed_from_the_span_that_has_it(
    numbers: set[int], data: st.DataObject
) -> None:
    if not numbers:
        return
    whole = data.draw(st.sampled_from(spans_of(numbers)))
    start = data.draw(st.integers(whole.start, whole.end - 1))
    part = Span(start, data.draw(st.integers(1, whole.end - start)))
    spans = Spans(*spans_of(numbers))
    spans.remove(part)
    assert list(spans) == spans_of(numbers - numbers_of([part]))


@given(PARTS, st.integers(0, ROOM))
def test_who_ends_and_who_starts_somewhere_is_found(numbers: set[int], at: int) -> None:
    spans = Spans(*spans_of(numbers))
    assert spans.ending_at(at) == sum(s.nbytes for s in spans_of(numbers) if s.end == at)
    assert spans.starting_at(at) == sum(s.nbytes for s in spans_of(numbers) if s.start == at)
