"""Bundles: the connections of a link that has several, dialled together and gathered again.

Each is authenticated by itself, and says in its handshake which one of how many it is, and of
which attempt of the dialler.  A link exists when all of one attempt are there, on either side;
until then nobody uses any of them.  What has come of an attempt goes when a later one begins, when
its time is over, or with the epoch.  Within a host, and through a relay, one connection carries
everything: no network gives it less than two, and a relay is a detour for a few minutes.
"""

from collections.abc import Awaitable, Callable

import trio

from ftcomm.control.driver import Driver
from ftcomm.control.links.dial import ALONE, BROKEN, Share, open_by_tcp
from ftcomm.errors import ProtocolError
from ftcomm.protocol.handshake import HANDSHAKE_DEADLINE_S, DataContext

# Connections of one attempt that are under way at once: more would cost less time, but a few
# diallers would then fill the other end's list of connections that have not proven themselves.
DIALLED_AT_ONCE = 4
# Of one attempt.  The dialler's begins before the other end's, so no end drops what the other uses.
BUNDLE_DEADLINE_S = 2 * HANDSHAKE_DEADLINE_S

Socket = trio.socket.SocketType
Dial = Callable[[Share], Awaitable[Socket]]


# --- the dialling end ---------------------------------------------------------------------------


async def open_bundle(driver: Driver, epoch: int, rank: int, role: str) -> list[Socket]:
    """Reach a member directly by TCP; the connections of the link to it, in order.

    Raises:
        OSError, PeerClosed, trio.TooSlowError, FtcommError: it did not work, for one of them.
    """

    async def dial(share: Share) -> Socket:
        return await open_by_tcp(driver, epoch, rank, role, to_rank=rank, share=share)

    streams = driver.hub.settings.streams
    if streams == 1:
        return [await dial(ALONE)]
    return await _Attempt(driver, next(driver.attempts), streams).run(dial)


class _Attempt:
    """Dials all connections of a link; the first that fails takes the others with it."""

    def __init__(self, driver: Driver, number: int, streams: int) -> None:
        self._driver = driver
        self._shares = [Share(number, stream, streams) for stream in range(streams)]
        self._found: dict[int, Socket] = {}
        self._lost: Exception | None = None

    async def run(self, dial: Dial) -> list[Socket]:
        try:
            with trio.fail_after(BUNDLE_DEADLINE_S):
                await self._dial_all(dial)
        except BaseException:
            for sock in self._found.values():
                sock.close()
            raise
        return [self._found[share.stream] for share in self._shares]

    async def _dial_all(self, dial: Dial) -> None:
        some = trio.CapacityLimiter(DIALLED_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for share in self._shares:
                nursery.start_soon(self._dial, dial, share, some, nursery.cancel_scope)
        if self._lost is not None:
            raise self._lost

    async def _dial(
        self, dial: Dial, share: Share, some: trio.CapacityLimiter, all_: trio.CancelScope
    ) -> None:
        async with some:
            try:
                self._found[share.stream] = await dial(share)
            except BROKEN as error:
                self._lost = self._lost or error
                all_.cancel()
                return
            if len(self._found) < share.streams:
                self._driver.hub.fault("half_linked", len(self._found))


# --- the listening end --------------------------------------------------------------------------


class HalfBundle:
    """Connections of one attempt so far."""

    def __init__(self, context: DataContext) -> None:
        self.age = _age(context)  # of the attempt: a later one of the same rank has a higher one
        self.over = trio.Event()  # set when it is whole or given up
        self._streams = context.streams
        self._conns: dict[int, Socket] = {}

    def add(self, context: DataContext, conn: Socket) -> list[Socket] | None:
        """Take one more; all of them in order, if it was the last; raises ProtocolError."""
        if context.streams != self._streams or context.stream in self._conns:
            raise ProtocolError(
                f"rank {context.from_rank} dials stream {context.stream} of {context.streams} "
                f"when {sorted(self._conns)} of {self._streams} are there"
            )
        self._conns[context.stream] = conn
        if len(self._conns) < self._streams:
            return None
        self.over.set()
        return [self._conns[stream] for stream in range(self._streams)]


class Gathering:
    """The half bundles of one listener: one at most for each rank that dials, the newest."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._newest: dict[int, HalfBundle] = {}

    async def take(self, conn: Socket, context: DataContext) -> list[Socket] | None:
        """Hold an authenticated connection until its bundle is whole or given up.

        Returns:
            All connections of the link, in order, to who brought the last; None to the others,
            who may close theirs.

        Raises:
            ProtocolError: it belongs to no bundle that could become whole.
        """
        half = self._half(context)
        whole = half.add(context, conn)
        if whole is None:
            await self._wait(half)
        return whole

    def _half(self, context: DataContext) -> HalfBundle:
        expected = self._driver.hub.settings.streams
        if context.streams != expected:
            raise ProtocolError(f"a link of {context.streams} connections, the job has {expected}")
        newest = self._newest.get(context.from_rank)
        if newest is None or newest.age < _age(context):
            if newest is not None:
                newest.over.set()
            newest = self._newest[context.from_rank] = HalfBundle(context)
        elif newest.age > _age(context) or newest.over.is_set():
            raise ProtocolError(f"rank {context.from_rank}'s attempt {context.attempt} is over")
        return newest

    async def _wait(self, half: HalfBundle) -> None:
        with self._driver.epoch_scopes.opened() as scope:
            scope.deadline = trio.current_time() + BUNDLE_DEADLINE_S
            try:
                await half.over.wait()
            finally:
                half.over.set()  # who goes takes the others with it


def _age(context: DataContext) -> tuple[int, int]:
    return context.epoch, context.attempt
