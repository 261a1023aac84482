"""Links over shared memory: a ring of bytes in each direction, and a Unix socket beside them.

The rings lie in the segment of the host.  The socket is the one of the handshake.  Nothing but
single bytes goes through it: a *bell* for a peer that sleeps.  Its end is the peer's end, so it is
also the proof that the peer runs; what a peer had written before it ended is still given.

How no wake-up is lost.  Who finds nothing to do begins a *sleep*: it writes the sleep's number into
a word of its own, makes a fence, looks at the peer's counter once more, and only then polls the
socket.  The peer moves its counter, makes a fence, and then looks at that word; a number that it
has not seen there means a bell.  Processors of ORDERED_STORES hold a store back from others until
after later loads, but never beyond a fence: so of the two looks at least one sees what the other
side has written before it.  Either the sleeper finds bytes, or the peer finds the sleep.
`tests/unit/transport/test_shm_sleep.py` tries all orders, those of store buffers too.

The peer writes into this memory when it likes.  Its counters are checked at each use, frames are
copied out before anybody believes them, and nothing is left here that a user gets.
"""

import contextlib
import errno
import mmap
import select
import socket
import threading
from collections.abc import Iterable, Sequence

import numpy as np

from ftcomm.transport.link import Buffer
from ftcomm.transport.shm_layout import WORDS_BYTES, RingPair, words_of
from ftcomm.transport.socket_link import replace_by_dead

# Published while a long send goes on, so that the peer reads what lies in the cache.  Of 128 KiB
# each, large arrays took 3 to 5 percent longer.
PIECE_BYTES = 512 * 1024
# A reader says how far it is each time that it has read this part of the ring, and rings when half
# of the ring is free: few wake-ups, each for much.  Who reads all that is there has said so of more
# than three quarters, so a writer that found no room is woken.
TOLD_PARTS = 4
SPIN_LIMIT = 16  # at an empty ring before `recv_into` gives up: about 1 us, less than its exception
BELLS_READ = 4096  # at most, in one call; more can only be a peer's mischief
_BELL = b"\1"


class SharedLink:
    """A `Link` over two rings of a segment.

    Attributes:
        rank: the peer.
        kind: how users call it.
    """

    kind = "shm"

    __slots__ = (
        "_arrived",
        "_at_their_sleep",
        "_at_their_written",
        "_at_written",
        "_counters",
        "_ended",
        "_fence_in",
        "_fence_out",
        "_is_sleeping",
        "_limit",
        "_map",
        "_poll_for",
        "_read",
        "_rung_for_data",
        "_rung_for_room",
        "_shared_counters",
        "_size",
        "_sleeps",
        "_sock",
        "_told",
        "_told_step",
        "_view",
        "_words",
        "_write_at",
        "_written",
        "rank",
    )

    def __init__(self, sock: socket.socket, rank: int, memory: mmap.mmap, place: RingPair) -> None:
        """Take over a connected Unix socket, and the rings at `place` of a mapped segment."""
        sock.setblocking(False)
        self._sock = sock
        self.rank = rank
        self._map = memory
        self._size = size = place.ring_bytes
        self._words = words = words_of(place.side)
        view = memoryview(memory)
        counters = view[place.words_at : place.words_at + WORDS_BYTES].cast("Q")
        self._counters = self._shared_counters = counters
        self._write_at = place.rings_at + words.writes * size
        read_at = place.rings_at + (1 - words.writes) * size
        self._view = view[read_at : read_at + size]
        self._written = self._read = self._told = self._arrived = 0
        self._limit = size  # how far may be written, as far as known
        self._told_step = size // TOLD_PARTS
        self._sleeps = self._rung_for_data = self._rung_for_room = 0
        self._is_sleeping = self._ended = False
        self._at_written, self._at_their_written = words.written, words.their_written
        self._at_their_sleep = words.their_waits_for_data
        # Taking a free lock is a locked instruction: on these processors a fence.
        fence = threading.Lock()
        self._fence_in, self._fence_out = fence.acquire, fence.release
        self._poll_for = ((sock.fileno(), select.POLLIN),)

    # --- sending ----------------------------------------------------------------------------------

    def sendmsg(
        self, buffers: Iterable[Buffer], _ancdata: tuple[()] = (), _flags: int = 0, /
    ) -> int:
        """Copy as much as there is room for; see `Link`."""
        if self._is_sleeping:
            self._wake()
        if self._ended:
            raise BrokenPipeError(errno.EPIPE, "the peer closed the connection")
        start = written = self._written
        size, limit = self._size, self._limit
        shared, base, mask = self._map, self._write_at, size - 1
        for buffer in buffers:
            nbytes = buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)
            end = written + nbytes
            if end > limit:
                limit = self._new_limit()
            at = written & mask
            if nbytes <= PIECE_BYTES and end <= limit and at + nbytes <= size:
                at += base
                shared[at : at + nbytes] = buffer
                written = end
                continue
            taken = self._send_in_pieces(np.frombuffer(buffer, np.uint8).data, written, limit)
            written += taken
            if taken < nbytes:
                break
        if written == start:
            raise BlockingIOError
        self._written = self._counters[self._at_written] = written
        self._fence_in()
        self._fence_out()
        sleep_number = self._counters[self._at_their_sleep]
        if sleep_number and sleep_number != self._rung_for_data:
            self._ring_for_data(sleep_number)
        return written - start

    def _send_in_pieces(self, view: memoryview, written: int, limit: int) -> int:
        """Copy what there is room for, up to the ring's end at a time."""
        size, sent = self._size, 0
        while sent < len(view):
            at = written & (size - 1)
            room = min(limit - written, size - at, PIECE_BYTES, len(view) - sent)
            if room == 0:
                limit = self._new_limit()
                if limit == written:
                    break
                continue
            start = self._write_at + at
            self._map[start : start + room] = view[sent : sent + room]
            sent += room
            written += room
            self._publish(written)
        return sent

    def _new_limit(self) -> int:
        limit = self._counters[self._words.their_read] + self._size
        # A limit never goes back, and what was copied, published or not, is below the one before.
        # What the peer has read was published.
        if not self._limit <= limit <= self._written + self._size:
            raise ConnectionAbortedError(
                errno.ECONNABORTED, "the peer's counter of what it has read is wrong"
            )
        self._limit = limit
        return limit

    def _publish(self, written: int) -> None:
        """Let the peer see what was copied; a bell if it sleeps for that.

        `sendmsg` does the same, without a call.
        """
        self._written = self._counters[self._at_written] = written
        self._fence_in()
        self._fence_out()
        sleep_number = self._counters[self._at_their_sleep]
        if sleep_number and sleep_number != self._rung_for_data:
            self._ring_for_data(sleep_number)

    def _ring_for_data(self, sleep_number: int) -> None:
        self._rung_for_data = sleep_number
        self._ring()

    def _ring(self) -> None:
        # What keeps a byte from being sent wakes the peer as well, or is its end: then the next
        # call here tells.
        with contextlib.suppress(OSError):
            self._sock.send(_BELL)

    # --- receiving --------------------------------------------------------------------------------

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Copy what has arrived; see `Link`."""
        if self._is_sleeping:
            self._wake()
        read = self._read
        available = self._arrived - read
        if available == 0:
            arrived = self._counters[self._at_their_written]
            available = self._look() if arrived == read else self._news(arrived)
            if available == 0:
                return 0
        size = self._size
        at = read & (size - 1)
        count = min(available, len(buffer), size - at)
        buffer[:count] = self._view[at : at + count]
        self._read = read = read + count
        if read - self._told >= self._told_step:
            self._tell(read)
        return count

    def _look(self) -> int:
        """Count the bytes that have arrived; 0 means that the peer has closed."""
        counters, where, read = self._counters, self._at_their_written, self._read
        for _ in range(SPIN_LIMIT):
            arrived = counters[where]
            if arrived != read:
                return self._news(arrived)
        if self._ended:
            return 0
        raise BlockingIOError

    def _news(self, arrived: int) -> int:
        """Believe the peer's counter, if it can be."""
        read = self._read
        if not 0 < arrived - read <= self._size:
            raise ConnectionAbortedError(
                errno.ECONNABORTED, "the peer's counter of what it has written is wrong"
            )
        self._arrived = arrived
        return arrived - read

    def _tell(self, read: int) -> None:
        """Let the peer write where this side has read; a bell if it sleeps for that."""
        self._told = read
        counters, words = self._counters, self._words
        counters[words.read] = read
        self._fence_in()
        self._fence_out()
        sleep_number = counters[words.their_waits_for_room]
        if (
            sleep_number
            and sleep_number != self._rung_for_room
            and self._arrived - read <= self._size // 2
        ):
            self._rung_for_room = sleep_number
            self._ring()

    # --- waiting ----------------------------------------------------------------------------------

    def poll_for(self, *, reading: bool, writing: bool) -> Sequence[tuple[int, int]]:
        """Begin a sleep; see `Link`, and this module's beginning."""
        counters, words = self._counters, self._words
        self._sleeps += 1
        self._is_sleeping = True
        if reading:
            counters[words.waits_for_data] = self._sleeps
        if writing:
            counters[words.waits_for_room] = self._sleeps
        self._fence_in()
        self._fence_out()
        may_read = reading and counters[words.their_written] != self._read
        may_write = writing and counters[words.their_read] + self._size != self._written
        return () if may_read or may_write or self._ended else self._poll_for

    def _wake(self) -> None:
        """The sleep is over: no more bells for it, and those that came are read."""
        self._is_sleeping = False
        self._counters[self._words.waits_for_data] = 0
        self._counters[self._words.waits_for_room] = 0
        try:
            if not self._sock.recv(BELLS_READ):
                self._ended = True
        except BlockingIOError:
            pass
        # whatever it is: without its socket nothing shows whether the peer is alive
        except OSError:
            self._ended = True

    # --- the end ----------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """End both directions at once; safe from any thread, any number of times.

        The owner can send no more, and gets what has arrived and then the end; so does the peer.
        """
        self._ended = True
        with contextlib.suppress(OSError):  # not connected any more: nothing left to end
            self._sock.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Fault injection: end the link as the system of a vanished peer does.

        What has arrived is lost, so this side looks at counters of its own from now on.
        """
        self._ended = True
        replace_by_dead(self._sock)
        alone = memoryview(bytearray(WORDS_BYTES)).cast("Q")
        alone[self._at_their_written] = self._arrived = self._read
        self._counters = alone

    def close(self) -> None:
        """Give the socket back, and the reference to the segment; only the owner may."""
        self._sock.close()
        self._counters.release()
        self._shared_counters.release()
        self._view.release()
        with contextlib.suppress(AttributeError):  # closed before
            del self._map
