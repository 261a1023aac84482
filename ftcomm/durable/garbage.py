"""Choice of the objects of a store that nothing can need any more; pure."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ftcomm.durable.chain_state import ChainState
from ftcomm.durable.store import StoredObject

DATA = "data/"
_NAME = re.compile(r"data/(\d{1,10})/(\d{1,10})/([^/]+)\.ftc")
_PRELUDE = "prelude-"  # so begins the name of an object that later versions name too


@dataclass(frozen=True, slots=True)
class _Reach:
    """Objects that a damaged record of a version may name."""

    attempt: int  # of the record
    above: float  # its version is a later one
    below: float  # its version is an earlier one; infinity if it is the newest of the attempt

    def has(self, attempt: int, version: int, name: str) -> bool:
        """Tell whether an object is one of them."""
        if name.startswith(_PRELUDE):
            return attempt <= self.attempt
        return attempt == self.attempt and self.above < version < self.below


def garbage(state: ChainState, objects: Iterable[StoredObject], keep: int) -> list[StoredObject]:
    """The objects that may be deleted (rule R16, Deletion); records are never among them.

    That is what versions name that are not kept.  It is also what no record names and none can
    name any more: objects of an overtaken attempt, and of versions older than one with a record.
    An object of a version that may be being written now stays, however old it is: no clock is
    asked.  So does what a damaged record may name whose version would be kept: a copy of the record
    may be put back.

    `state` is of the chain, read after `objects` was listed.
    """
    kept = {part.name for number in state.kept(keep) for part in state.versions[number].parts}
    named = {part.name for record in state.versions.values() for part in record.parts}
    newest = max(((each.attempt, each.version) for each in state.versions.values()), default=(0, 0))
    reaches = [_reach_of(state, number) for number in needed_though_damaged(state, keep)]
    found = []
    for each in objects:
        match = _NAME.fullmatch(each.name)
        if match is None or each.name in kept:
            continue
        attempt, version = int(match[1]), int(match[2])
        if any(reach.has(attempt, version, match[3]) for reach in reaches):
            continue
        overtaken = attempt < state.newest_attempt or (attempt, version) < newest
        if each.name in named or overtaken:
            found.append(each)
    return found


def needed_though_damaged(state: ChainState, keep: int) -> list[int]:
    """Numbers of damaged records whose versions would be kept if they could be read."""
    newest = sorted(state.versions)[-keep:]
    oldest = newest[0] if len(newest) == keep else 0
    attempt = max(state.attempts, default=0)
    own = [number for number in newest if number > attempt]
    parent = state.attempts[attempt].parent if attempt and len(own) < keep else 0
    return [number for number in sorted(state.damaged) if number > oldest or number == parent]


def _reach_of(state: ChainState, number: int) -> _Reach:
    """By the records around it: versions of an attempt are recorded in their order."""
    begun = max((each for each in state.attempts if each < number), default=0)
    attempt = state.attempts[begun].attempt if begun else 0
    own = {n: each.version for n, each in state.versions.items() if each.attempt == attempt}
    above = max((version for n, version in own.items() if n < number), default=-math.inf)
    below = min((version for n, version in own.items() if n > number), default=math.inf)
    return _Reach(attempt, above, below)
