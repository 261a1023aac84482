"""Unasked calls: repeated reductions that the compiled core completes without asking the machine.

While nothing can be in the way of a call, the core itself logs its result and moves the position
(`ftcomm.core.Form.repeat`).  What it reads and writes for that is here, and may change between any
two lines until `UNTIL_NS` is 0.  Whoever asks the machine has it `absorb` first what was completed.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Protocol

from ftcomm.protocol.position import PRELUDE, START, Position
from ftcomm.recovery.recent_calls import CALLS_KEPT, NO_CALL, Called

# The words, as in `core.c`. Until when calls may be completed unasked, in nanoseconds of the
# monotonic clock; 0 is never.
UNTIL_NS = 0
EPOCH = 1  # that of the plan in force
BRANCH, VERSION, SEQNO = 2, 3, 4  # the position of the next call
STEP = 5  # checksum of the broadcasts that were executed in this epoch
KEPT_ROOM = 6  # bytes that the budget of rule R15 has left
LOG_ROOM = 7  # bytes that the log takes before a warning
CALLS, BYTES, NANOSECONDS = 8, 9, 10  # of all unasked calls of this process, for its statistics
WORDS = 11
LATEST_S = 2.0**33  # of `UNTIL_NS`, which has 63 bits


class RepeatedCall(Protocol):
    """Calls of one form, as the core names them.

    Attributes:
        called: what they are to others.
    """

    called: Called

    def entry(self, raw: bytes) -> Any:
        """The entry of the log for the result of one; `raw` are its bytes."""


class UnaskedCalls:
    """Words and lists that the machine shares with the core, and the results that it has from it.

    Attributes:
        words: see above.
        asking: the call in flight that asks, `NO_CALL` outside of one.
        calls: of each unasked call who it is, a `RepeatedCall`, and behind it its result, as bytes.
            The result of a call in flight is missing.
        forms: of the core, prepared for calls of the present epoch, by what tells them apart.
        holder: of the lock around calls (`ftcomm.api.call_guard`).
        share_of: bytes of the log's limit that a result of so many bytes takes.
    """

    __slots__ = ("_position", "_runs", "asking", "calls", "forms", "holder", "share_of", "words")

    def __init__(self) -> None:
        self.words = array("q", bytes(8 * WORDS))
        self.calls: list[Any] = []
        self.forms: dict[object, Any] = {}
        self.holder: dict[int, tuple[int]] = {}
        self.share_of: Callable[[int], int] = int
        self.asking = NO_CALL
        self._position: Position
        self.position = START
        # Results in order, all of which stay until their version is over (rule R15): for calls that
        # followed each other the first position, and as in `calls`.
        self._runs: list[tuple[Position, list[Any]]] = []

    @property
    def position(self) -> Position:
        """The collective that this worker completes next."""
        before, seqno = self._position, self.words[SEQNO]
        if before.seqno == seqno:
            return before
        return Position(before.branch, before.version, seqno)  # not kept: any thread may ask

    @position.setter
    def position(self, position: Position) -> None:
        self._position = position
        self.words[BRANCH], self.words[VERSION], self.words[SEQNO] = position

    @property
    def is_in_flight(self) -> bool:
        """An unasked call runs."""
        return self.call is not self.asking

    @property
    def call(self) -> Called:
        """The call in flight, `NO_CALL` outside of one."""
        last = self.calls[-1:]  # at once: the core may be about to complete it
        called: Called = last[0].called if last and type(last[0]) is not bytes else self.asking
        return called

    def absorb(self) -> list[Called]:
        """Take in what was completed unasked; nothing is meanwhile.

        Returns:
            the newest of these calls, in order, as many as are told of.
        """
        done = self.calls[: len(self.calls) // 2 * 2]
        if not done:
            return []
        del self.calls[: len(done)]
        first = self.position._replace(seqno=self.position.seqno - len(done) // 2)
        self._runs.append((first, done))
        return [call.called for call in done[-2 * CALLS_KEPT :: 2]]

    def get(self, position: Position) -> Any:
        """The log's entry of `position`, None if that is not of a call that was absorbed."""
        at = bisect_right(self._runs, position, key=lambda run: run[0]) - 1
        if at < 0:
            return None
        first, calls = self._runs[at]
        index = 2 * (position.seqno - first.seqno)
        if position.version != first.version or index >= len(calls):
            return None
        return calls[index].entry(calls[index + 1])

    def positions(self) -> list[Position]:
        """Those of all calls that were absorbed, in order."""
        return [
            first._replace(seqno=first.seqno + index)
            for first, calls in self._runs
            for index in range(len(calls) // 2)
        ]

    def commit(self, version: int) -> None:
        """Release the results of older versions, but of the prelude."""
        self._runs = [run for run in self._runs if not PRELUDE < run[0].version < version]

    def forget(self) -> None:
        """Release all results."""
        self._runs = []
