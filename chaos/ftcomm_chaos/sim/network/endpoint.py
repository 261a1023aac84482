"""One end of a simulated connection as the product speaks on it: the handshake, then the rest."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ftcomm.protocol.handshake import (
    NONCE_BYTES,
    ClientHandshake,
    DataContext,
    HandshakeRequest,
    ServerHandshake,
    epoch_key,
)
from ftcomm_chaos.sim.network.byte_pipe import End

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

TOKEN = b"the token of every simulated job"
JOB = "sim"


class HandshakeRun:
    """Runs the real handshake on `end`, in whatever slices its bytes come.

    Attributes:
        ready: the handshake is done.
        on_ready: called then.
        take: called with what comes behind it.
    """

    def __init__(
        self,
        end: End,
        shake: ClientHandshake | ServerHandshake,
        *,
        on_ready: Callable[[], None] = lambda: None,
        take: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self.end = end
        self.ready = False
        self._shake = shake
        self.on_ready, self.take = on_ready, take
        self._asked: Callable[[HandshakeRequest], None] = lambda _: None
        self._has_asked = False
        self._bytes = bytearray()
        end.on_bytes = self._on_bytes

    def begin(self) -> None:
        """The client's first words."""
        assert isinstance(self._shake, ClientHandshake)
        self.end.send(self._shake.hello())

    def answer(self, asked: Callable[[HandshakeRequest], None]) -> None:
        """Accept like a server: `asked` gets the client's claims, and then calls `use_key`."""
        self._asked = asked

    def use_key(self, key: bytes) -> None:
        """Go on, as a server."""
        assert isinstance(self._shake, ServerHandshake)
        self.end.send(self._shake.use_key(key))
        self._go_on()

    def send(self, data: bytes) -> None:
        """Bytes behind the handshake."""
        assert self.ready, "bytes before the handshake is done"
        self.end.send(data)

    def _on_bytes(self, data: bytes) -> None:
        if self.ready:
            self.take(data)
            return
        self._bytes += data
        self._go_on()

    def _go_on(self) -> None:
        shake = self._shake
        while 0 < shake.bytes_wanted <= len(self._bytes):
            size = shake.bytes_wanted
            piece = bytes(self._bytes[:size])
            del self._bytes[:size]
            self.end.send(shake.receive(piece))
            if isinstance(shake, ServerHandshake) and shake.request and not self._has_asked:
                self._has_asked = True
                self._asked(shake.request)
                return
        if shake.done and not self.ready:
            self._begin_the_rest()

    def _begin_the_rest(self) -> None:
        self.ready = True
        rest, self._bytes = bytes(self._bytes), bytearray()
        self.on_ready()
        if rest and not self.end.over:
            self.take(rest)


def dial(
    end: End, process: "SimulatedProcess", epoch: int, rank: int, role: str, fresh: bytes
) -> HandshakeRun:
    """`process` begins to talk to `rank` of its epoch over a connection that it has opened."""
    core = process.core
    own = core.view.members[core.view.rank]
    context = DataContext(JOB, epoch, core.view.rank, rank, own.incarnation).encode()
    key = epoch_key(TOKEN, JOB, epoch)
    talk = HandshakeRun(end, ClientHandshake(key, role=role, context=context, nonce=fresh))
    talk.begin()
    return talk


def nonce(number: int) -> bytes:
    """A nonce that no other connection of the run has."""
    return number.to_bytes(NONCE_BYTES, "big")
