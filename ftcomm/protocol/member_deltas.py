"""Member deltas: the list of members, sent once on a connection, then only what changed.

A plan names every member, and every member gets a plan: written out in each, that is the square
of the workers.  So the members travel before the plan, in `MemberDelta` frames of their own, whose
bytes are the same for all who were told the same before; they are made once.  A later plan is
preceded by those places alone that differ.  The receiver puts each plan together again.
"""

from dataclasses import replace

from ftcomm.errors import ProtocolError
from ftcomm.protocol.codec import encode
from ftcomm.protocol.host_groups import Grouping
from ftcomm.protocol.messages import ControlMessage, Member, MemberDelta, Plan

MEMBERS_PER_DELTA = 256  # of 471 bytes at most: 118 KiB, within a frame

Members = tuple[Member, ...]


class MemberDeltaWriter:
    """Makes the frames of plans, for all connections of one tracker."""

    def __init__(self) -> None:
        self._members: Members = ()
        # By the identity of what was told before, which is kept so that no other takes its place.
        self._frames: dict[int, tuple[Members, tuple[bytes, ...]]] = {}

    def frames(self, plan: Plan, told: Members) -> list[bytes]:
        """Encode `plan` for a receiver that was sent the members `told` before, () if none.

        Members that are unchanged as a whole should be the same tuple: it is not compared again.
        """
        if plan.members is not self._members:
            self._members, self._frames = plan.members, {}
        found = self._frames.get(id(told))
        if found is None:
            found = told, tuple(encode(member_delta) for member_delta in member_deltas(plan, told))
            self._frames[id(told)] = found
        return [*found[1], encode(plan)]


def member_deltas(plan: Plan, told: Members) -> list[MemberDelta]:
    """The places of `plan` that differ from those `told`; the grouping with the first."""
    news = [
        member
        for rank, member in enumerate(plan.members)
        if rank >= len(told) or member != told[rank]
    ]
    pieces = [
        tuple(news[start : start + MEMBERS_PER_DELTA])
        for start in range(0, len(news), MEMBERS_PER_DELTA)
    ]
    return [
        MemberDelta(piece, () if told or number else plan.grouping)
        for number, piece in enumerate(pieces)
    ]


class MemberDeltaReader:
    """Puts the plans of one connection together."""

    def __init__(self) -> None:
        self._places: list[Member] = []
        self._members: Members | None = None  # `_places`, while nothing has changed
        self._grouping: Grouping = ()

    def take(self, message: ControlMessage) -> ControlMessage | None:
        """Return a plan with its members, any other message unchanged, and None for a member delta.

        Raises:
            ProtocolError: a member delta leaves out a place that was never sent, or the
                receiver's own place.
        """
        match message:
            case MemberDelta(members, grouping):
                for member in members:
                    self._put(member)
                self._members = None
                self._grouping = grouping or self._grouping
                return None
            case Plan(rank=rank):
                if rank >= len(self._places):
                    raise ProtocolError(f"a plan for rank {rank} of {len(self._places)} members")
                if self._members is None:
                    self._members = tuple(self._places)
                return replace(message, members=self._members, grouping=self._grouping)
        return message

    def _put(self, member: Member) -> None:
        if member.rank > len(self._places):
            raise ProtocolError(
                f"a member delta names rank {member.rank} before {len(self._places)}"
            )
        if member.rank == len(self._places):
            self._places.append(member)
        else:
            self._places[member.rank] = member
