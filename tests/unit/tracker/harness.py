"""A tracker on a free port, and raw clients that speak its protocol."""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import trio

from ftcomm.config.environment import read_token
from ftcomm.protocol.codec import Decoder, encode
from ftcomm.protocol.handshake import NONCE_BYTES, ClientHandshake, control_key
from ftcomm.protocol.messages import ControlMessage, Heartbeat, Hello
from ftcomm.protocol.position import START
from ftcomm_tracker.server.connections.authentication import receive_exactly
from ftcomm_tracker.server.open_job import OpenJob, ServeOptions, open_job


@contextlib.asynccontextmanager
async def tracker(state_dir: Path, n: int = 2, **settings: object) -> AsyncIterator[OpenJob]:
    """A tracker at work; it is stopped as SIGKILL would, without a word, when the block ends."""
    job = await open_job(ServeOptions(n, state_dir=state_dir, settings=settings))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(job.server.run)
        try:
            yield job
        finally:
            nursery.cancel_scope.cancel()
    job.journal.close()


@dataclass
class Client:
    """One raw connection after its handshake."""

    stream: trio.SocketStream
    decoder: Decoder = field(default_factory=Decoder)
    inbox: list[ControlMessage] = field(default_factory=list)

    async def send(self, message: ControlMessage) -> None:
        await self.stream.send_all(encode(message))

    async def receive(self) -> ControlMessage | None:
        """The next message, None once the tracker has ended the connection."""
        while not self.inbox:
            try:
                data = await self.stream.receive_some()
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self.inbox += self.decoder.feed(data)
        return self.inbox.pop(0)

    async def receive_a(self, kind: type[ControlMessage]) -> ControlMessage:
        """Skip to the next message of one kind."""
        while True:
            message = await self.receive()
            assert message is not None, f"the connection ended before a {kind.__name__}"
            if isinstance(message, kind):
                return message


@contextlib.asynccontextmanager
async def client(
    job: OpenJob, role: str = "worker", key: bytes | None = None
) -> AsyncIterator[Client]:
    """Connect to `job` and prove ourselves."""
    key = control_key(read_token(job.token_file)) if key is None else key
    async with connect(job.server.address, role, key) as connected:
        yield connected


@contextlib.asynccontextmanager
async def connect(address: tuple[str, int], role: str, key: bytes) -> AsyncIterator[Client]:
    """Connect and run the handshake."""
    async with await trio.open_tcp_stream(*address) as stream:
        handshake = ClientHandshake(key, role=role, context=b"", nonce=os.urandom(NONCE_BYTES))
        await stream.send_all(handshake.hello())
        while not handshake.done:
            reply = handshake.receive(await receive_exactly(stream, handshake.bytes_wanted))
            if reply:
                await stream.send_all(reply)
        yield Client(stream)


def hello(worker_id: str, nonce: bytes | None = None, incarnation: int = 0) -> Hello:
    """Return a worker's first message."""
    return Hello(
        worker_id=worker_id,
        nonce=nonce or worker_id.encode().ljust(16, b"."),
        incarnation=incarnation,
        host="host",
        address="127.0.0.1",
        port=1,
        plan_epoch=0,
        revoke_epoch=0,
        suspects=(),
        closed=False,
        tables=b"tables",
    )


def heartbeat(number: int) -> Heartbeat:
    """A sign of activity."""
    return Heartbeat(number, 0, START)
