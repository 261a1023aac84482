"""Waiting for a peer: a few empty tries, then the kernel, always with the waker's descriptor."""

import functools
import os
import select
import time

from ftcomm.transport.interruptions import Interrupted
from ftcomm.transport.link import Link
from ftcomm.transport.waker import Waker

# Empty tries before the thread sleeps. About 100 us where each rank of the host has a processor:
# who sleeps needs 50 us and more to come back, and a peer that gives up waiting for it sooner
# sleeps as well, so that once one has slept both go on waking each other, call after call. Where
# ranks share processors it is 30 us, what a peer needs for a small step: more would keep one from
# its turn.
SPINS_ALONE, SPINS_SHARED = 60, 20
# All tries together; twenty times what they take where nobody else wants the processor. With
# several processes for each, one try may take as long as all the others' turns: a rank that slept
# would cost less, and say for whom it waits.
SPIN_LIMIT_S = 0.002
CLOCK_EVERY = 4  # tries: most steps end before the first reading, and pay nothing
let_others_run = getattr(os, "sched_yield", functools.partial(time.sleep, 0))


def spins_before_sleep(ranks: int, alone: int = SPINS_ALONE, shared: int = SPINS_SHARED) -> int:
    """For a process of which there are so many on this host: `alone` if each has a processor.

    All processors of the host count: a scheduler may have bound each rank to one of its own.
    """
    return alone if ranks <= (os.cpu_count() or 1) else shared


SLEEP_MS = 100  # then signals are looked for, should one have come just before the sleep


class WaitProgress:
    """Report of a blocked thread to the control thread.

    Read in this order: if a new wait has begun meanwhile, `since` says that it is young.

    Attributes:
        step: of the schedule, in which this rank stands; -1 while links are made for its first.
        peers: the ranks that are waited for; empty while bytes move.
        since: the monotonic time at which the last wait began; written before `peers`.
    """

    __slots__ = ("peers", "since", "step")

    def __init__(self) -> None:
        self.step = -1
        self.peers: tuple[int, ...] = ()
        self.since = 0.0


class Waiter:
    """Tries for a while, then sleeps until a link is ready; for the thread that runs collectives.

    Attributes:
        progress: whom the thread waits for, for the control thread to read.
        spins: empty tries before it sleeps.
    """

    __slots__ = ("_is_dirty", "_poll", "_spins_until", "_waker", "progress", "spins")

    def __init__(self, waker: Waker, progress: WaitProgress) -> None:
        self.progress = progress
        self._waker = waker
        self._poll = self._new_poll()
        self._is_dirty = False  # links are registered, of a wait that goes on or was cut short
        self.spins = SPINS_SHARED
        self._spins_until = 0.0  # monotonic time: a step that may not move tries until then

    def pause(self, spins: int, receiving: Link | None, sending: Link | None) -> None:
        """Let others run, or sleep as `wait` does, after so many empty tries in a row.

        Raises:
            Interrupted: the waker is set.
        """
        may_spin = spins < self.spins and not self._waker.is_set
        if may_spin and spins % CLOCK_EVERY == 0:
            now = time.monotonic()
            if spins == CLOCK_EVERY:
                self._spins_until = now + SPIN_LIMIT_S
            may_spin = now < self._spins_until
        if may_spin:
            let_others_run()
        else:
            self.wait(receiving, sending)

    def _new_poll(self) -> "select.poll":  # quoted, for systems that have none
        poll = select.poll()
        poll.register(self._waker.fd, select.POLLIN)
        return poll

    def wait(self, receiving: Link | None, sending: Link | None) -> None:
        """Return when one of the links may move.

        Raises:
            Interrupted: the waker is set.
        """
        masks: dict[int, int] = {}
        links = [link for link in (receiving, sending) if link is not None]
        for link in dict.fromkeys(links):
            wanted = link.poll_for(reading=link is receiving, writing=link is sending)
            for fd, mask in wanted:
                masks[fd] = masks.get(fd, 0) | mask
            if not wanted:
                masks = {}
                break
        self.wait_for(masks, tuple(dict.fromkeys(link.rank for link in links)))

    def wait_for(self, masks: dict[int, int], peers: tuple[int, ...]) -> None:
        """Return when one of the descriptors may do what its mask says; at once without any.

        Raises:
            Interrupted: the waker is set.
        """
        if self._waker.is_set:
            raise Interrupted
        if masks:
            self._sleep(masks, peers)
        if self._waker.is_set:
            raise Interrupted

    def _sleep(self, masks: dict[int, int], peers: tuple[int, ...]) -> None:
        """Ctrl-C may end this anywhere; what is registered then goes with its poll object.

        It may not stay: a link that is closed would end every later poll at once, for ever.
        """
        if self._is_dirty:
            self._poll = self._new_poll()
        self._is_dirty = True
        poll, progress = self._poll, self.progress
        for fd, mask in masks.items():
            poll.register(fd, mask)
        progress.since = time.monotonic()
        try:
            progress.peers = peers
            while not poll.poll(SLEEP_MS):
                pass
        finally:
            progress.peers = ()
        for fd in masks:
            poll.unregister(fd)
        self._is_dirty = False
