"""Inquiry: after the report of a mismatch, what the ranks have called, for a short while (R7).

A report says that the job ends; the answers only say better why.  So whatever else happens, the
fatal decision follows: when all have answered, or when the time is over.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ftcomm.protocol.messages import Calls, Leaves
from ftcomm.protocol.position import PRELUDE, Position

# All ranks know of a mismatch 1 s after the last one has entered its call, and 0.25 s may pass
# before a rank says that it is blocked. Answers take some milliseconds; a stopped rank gives none.
ANSWER_WITHIN_S = 0.4
# A rank reads all of its state to say what is in it: 1 GB takes a second.
LEAVES_WITHIN_S = 5.0
# Ranks that are asked in a job of many: an answer of 5 KB from each of 2,000 takes seconds to read.
MOST_ASKED = 16


@dataclass(frozen=True, slots=True)
class Side:
    """One rank's call, as a report names it; of the `log` if it is what that rank's log holds."""

    rank: int
    position: Position
    signature: bytes
    site: str
    log: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of a mismatch before any rank is asked.

    Attributes:
        position: where the rank stands that has reported it.
        sides: the calls that were seen to differ.
        version: the checkpoint whose states differ, -1 if it is the calls that do.
    """

    position: Position
    sides: tuple[Side, ...]
    version: int = PRELUDE


@dataclass(slots=True)
class Inquiry:
    """The answers so far.

    Attributes:
        evidence: why the ranks are asked.
        asked: their ranks.
        due: when the decision is made with the answers that are there.
        calls: what they have called, by rank.
        leaves: what is in their states, by rank.
    """

    evidence: Evidence
    asked: frozenset[int]
    began: float
    calls: dict[int, Calls] = field(default_factory=dict)
    leaves: dict[int, Leaves] = field(default_factory=dict)

    @property
    def due(self) -> float:
        """Time of the decision, which uses the answers received by then."""
        return self.began + (ANSWER_WITHIN_S if self._awaits_calls else LEAVES_WITHIN_S)

    def is_over(self, now: float, in_slots: AbstractSet[int]) -> bool:
        """Nobody's answer is awaited any more, of those that are `in_slots`."""
        awaited = self.asked - self.calls.keys() | self._describing - self.leaves.keys()
        return now >= self.due or not awaited & in_slots

    @property
    def _awaits_calls(self) -> bool:
        return bool(self.asked - self.calls.keys())

    @property
    def _describing(self) -> set[int]:
        """Ranks that are looking at their states."""
        if self.evidence.version == PRELUDE:
            return set()
        return {rank for rank, said in self.calls.items() if said.digest}


def ranks_to_ask(evidence: Evidence, in_slots: list[int]) -> list[int]:
    """Those that the evidence names, and others as long as they are few."""
    named = {side.rank for side in evidence.sides}
    return sorted(sorted(in_slots, key=lambda rank: (rank not in named, rank))[:MOST_ASKED])
