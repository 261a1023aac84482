"""Member deltas: a plan comes out whole at the other end, and what is known is not told again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcomm.errors import ProtocolError
from ftcomm.protocol.codec import Decoder
from ftcomm.protocol.field_types import MAX_CONTROL_FRAME
from ftcomm.protocol.member_deltas import (
    MEMBERS_PER_DELTA,
    MemberDeltaReader,
    MemberDeltaWriter,
    member_deltas,
)
from ftcomm.protocol.messages import ControlMessage, Member, MemberDelta, Plan, Settled
from ftcomm.protocol.position import START

Members = tuple[Member, ...]


def members(count: int, number: int = 1) -> Members:
    return tuple(Member(r, f"w{r}", number, "host", "10.0.0.1", 4000) for r in range(count))


def plan_of(places: Members, epoch: int = 1) -> Plan:
    order = tuple(range(len(places)))
    return Plan(epoch, 0, START, 0, -1, -1, (), (), members=places, grouping=order)


def heard(reader: MemberDeltaReader, frames: list[bytes]) -> list[ControlMessage]:
    messages = Decoder().feed(b"".join(frames))
    return [message for message in map(reader.take, messages) if message is not None]


def test_a_later_plan_is_told_by_what_has_changed_alone() -> None:
    first = plan_of(members(1000))
    changed = replace(first.members[7], incarnation=2, port=5000)
    second = plan_of((*first.members[:7], changed, *first.members[8:]), epoch=2)
    writer, reader = MemberDeltaWriter(), MemberDeltaReader()
    assert heard(reader, writer.frames(first, ())) == [first]
    frames = writer.frames(second, first.members)
    assert member_deltas(second, first.members) == [MemberDelta((changed,))]
    assert sum(map(len, frames)) < 100
    assert heard(reader, frames) == [second]
    assert heard(MemberDeltaReader(), writer.frames(second, ())) == [second]  # on a new connection


def test_all_who_were_told_the_same_get_the_same_bytes() -> None:
    one, other = plan_of(members(600)), replace(plan_of(members(600)), rank=5)
    other = replace(other, members=one.members)
    writer = MemberDeltaWriter()
    pairs = zip(writer.frames(one, ())[:-1], writer.frames(other, ())[:-1], strict=True)
    assert [mine is theirs for mine, theirs in pairs] == [True] * -(-600 // MEMBERS_PER_DELTA)


def test_the_largest_member_delta_fits_its_frame() -> None:
    large = Member(2047, "w" * 64, 2**32 - 1, "h" * 64, "a" * 255, 65535, True, b"n" * 32)
    plan = plan_of((large,) * 2048)
    assert max(map(len, MemberDeltaWriter().frames(plan, ()))) <= MAX_CONTROL_FRAME


@given(st.lists(st.lists(st.integers(1, 3), min_size=4, max_size=4), min_size=1, max_size=6))
def test_any_course_of_processes_arrives_as_it_was(course: list[list[int]]) -> None:
    writer, reader = MemberDeltaWriter(), MemberDeltaReader()
    told: Members = ()
    for epoch, numbers in enumerate(course, 1):
        places = tuple(
            replace(members(4)[r], incarnation=number) for r, number in enumerate(numbers)
        )
        plan = plan_of(places, epoch)
        assert heard(reader, writer.frames(plan, told)) == [plan]
        told = places


def test_what_is_no_part_of_a_plan_passes_as_it_is() -> None:
    assert MemberDeltaReader().take(Settled(3)) == Settled(3)


def test_a_member_delta_with_a_gap_and_a_plan_for_nobody_are_refused() -> None:
    reader = MemberDeltaReader()
    with pytest.raises(ProtocolError, match="a member delta names rank 1 before 0"):
        reader.take(MemberDelta(members(2)[1:]))
    with pytest.raises(ProtocolError, match="a plan for rank 0 of 0 members"):
        reader.take(plan_of(()))
