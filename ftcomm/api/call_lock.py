"""Call lock: held by a call that runs, and by none that Ctrl-C has thrown out.

An interrupt is raised between two steps of Python, so also after a lock was taken and before the
`try` or `with` that would give it back, or before the first step of what gives it back.  No order
of steps closes these gaps, so nothing depends on giving back.  What is noted is the *frame* that
has taken the lock, in the one step that takes it.  A frame that is not on its thread's stack any
more has been left, by whatever way, and holds nothing.  Where an interrupt can land:

- before `setdefault`, nothing has happened;
- behind it, up to the step that gives back, inside of a `try` or not: the frame is left, and the
  next call of this thread finds that and frees the lock.  If a result was lost on that way, `mark`
  has moved since the lock was taken: its owner has to look;
- behind the step that gives back, the call has ended.  From there to the caller nothing is called,
  and without a call no interrupt is raised.  That is why `release` deletes and calls nothing.

Only the thread that has taken a lock can see that its call has been left: the stacks of others
change while one looks.  To another one it stays taken until then.
"""

import sys
from _thread import get_ident
from types import FrameType
from typing import Any, Final, NamedTuple


class Holder(NamedTuple):
    """Holder of a call lock.

    Attributes:
        frame: of the call; None where it is not one call that has it.
        thread: on which the frame runs.
        mark: what the lock's owner wants to compare if the call is cut short.
    """

    frame: FrameType | None
    thread: int
    mark: Any


STAND_IN: Final = Holder(None, 0, None)  # for calls that run on another thread


class CallLock:
    """Excludes other threads, and calls inside of a call; never waits.

    Attributes:
        holder: empty, or who has it under 0; looked at by who has no time for a call.
        barred: the number of a thread that never gets it, 0 for none.
    """

    __slots__ = ("barred", "holder")

    def __init__(self) -> None:
        self.barred = 0
        self.holder: dict[int, Any] = {}  # whose setdefault is atomic

    def take(self, frame: FrameType, mark: Any = None) -> bool:
        """For the call that runs as `frame`, until `release`; False if somebody has it."""
        thread = get_ident()
        if thread == self.barred:
            return False
        holder = (frame, thread, mark)
        return self.holder.setdefault(0, holder) is holder

    def lend(self) -> bool:
        """For calls of another thread, until `release`; True also if they have it already."""
        return self.holder.setdefault(0, STAND_IN) is STAND_IN

    @property
    def is_lent(self) -> bool:
        """The calls of another thread have it."""
        return self.holder.get(0) is STAND_IN

    def release(self) -> None:
        """Give it back."""
        del self.holder[0]

    def left_by(self) -> Holder | None:
        """Return this thread's call that ended without releasing; None if there is no such call."""
        holder = self.holder.get(0)
        if holder is None or holder[1] != get_ident():
            return None
        frame: FrameType | None = sys._getframe()  # noqa: SLF001 - nothing else tells what runs
        while frame is not None:
            if frame is holder[0]:
                return None
            frame = frame.f_back
        return Holder(*holder)
