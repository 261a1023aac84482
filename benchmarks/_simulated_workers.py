"""Many simulated workers in one process, for `tracker_scale.py`: their control connections alone.

Each has a real connection with the real handshake and messages; there is no user's script, no
data plane and no numpy behind it.  Orders come as JSON lines on stdin, answers go to stdout.
"""

import functools
import heapq
import json
import os
import random
import selectors
import socket
import struct
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ftcomm.config.backoff import TRACKER_BACKOFF
from ftcomm.config.environment import read_token
from ftcomm.errors import FtcommError
from ftcomm.protocol.codec import decode_body, encode, frame_length
from ftcomm.protocol.handshake import NONCE_BYTES, ClientHandshake, control_key
from ftcomm.protocol.member_deltas import MemberDeltaReader
from ftcomm.protocol.message_splitting import Joiner
from ftcomm.protocol.messages import (
    ControlMessage,
    Fetched,
    Frame,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Plan,
    Report,
    Resumed,
    Revoke,
    Welcome,
    WorkerMessage,
)
from ftcomm.protocol.position import START, Position, PositionRange
from ftcomm.recovery.archive.placement import keep_stride, kept_seqnos

JITTER = random.Random(0)  # noqa: S311 - when to dial and beat
RECENT = 2  # results that are not known to be stable
WORKS_AT = Position(0, 3, 50)  # a checkpoint, and fifty results since
SHARED_BYTES = 1024  # frames above are the same for all workers, who would decode them side by side
_RESET = struct.pack("ii", 1, 0)


@functools.lru_cache(maxsize=64)
def _decode_shared(body: bytes) -> Frame:
    """A long frame; 2,000 workers have processors of their own to decode it, we have not."""
    return decode_body(body)


class Crowd:
    """The workers of this process, and what they have seen."""

    def __init__(self, address: tuple[str, int], key: bytes, heartbeat_every: float) -> None:
        self.address, self.key, self.heartbeat_every = address, key, heartbeat_every
        self.selector = selectors.DefaultSelector()
        self.workers: dict[str, Worker] = {}
        self.received_bytes = 0
        self.dials = 0
        self.welcomed = 0
        self.revoked: Counter[int] = Counter()
        self.planned: Counter[int] = Counter()
        self.revoked_at: dict[int, float] = {}
        self.planned_at: dict[int, float] = {}
        self._due: list[tuple[float, int, Any]] = []
        self._numbers = 0

    def later(self, delay: float, action: Any) -> None:
        """Call `action` after `delay` seconds."""
        self._numbers += 1
        heapq.heappush(self._due, (time.monotonic() + delay, self._numbers, action))

    def serve(self) -> None:
        """Go on until stdin ends."""
        os.set_blocking(0, False)
        orders = b""
        self.selector.register(0, selectors.EVENT_READ)
        while True:
            now = time.monotonic()
            pause = self._due[0][0] - now if self._due else 1.0
            for key, _ in self.selector.select(max(pause, 0.0)):
                if key.fd == 0:
                    data = os.read(0, 65536)
                    if not data:
                        return
                    *lines, orders = (orders + data).split(b"\n")
                    for line in lines:
                        self._obey(json.loads(line))
                else:
                    key.data()
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()

    def _obey(self, order: dict[str, Any]) -> None:
        for worker_id in order.get("join", ()):
            self.workers[worker_id] = Worker(self, worker_id)
        if "lose" in order:
            self.workers.pop(order["lose"]).die()
        answer = {
            "at": time.monotonic(),
            "welcomed": self.welcomed,
            "dials": self.dials,
            "bytes": self.received_bytes,
            "revoked": self.revoked,
            "planned": self.planned,
            "revoked_at": self.revoked_at,
            "planned_at": self.planned_at,
        }
        print(json.dumps(answer), flush=True)


class Worker:
    """One control connection."""

    def __init__(self, crowd: Crowd, worker_id: str) -> None:
        self._crowd, self._worker_id = crowd, worker_id
        self._nonce = os.urandom(16)
        self._position = START
        self._index = self._size = 0
        self._epoch = self._revoked = self._number = 0
        self._failures = 0
        self._over = False
        self._dial()

    # --- the connection -----------------------------------------------------------------------

    def _dial(self) -> None:
        self._crowd.dials += 1
        self._buffer = bytearray()
        self._joined = False
        self._joiner, self._deltas = Joiner(), MemberDeltaReader()
        shake = ClientHandshake(
            self._crowd.key, role="worker", context=b"", nonce=os.urandom(NONCE_BYTES)
        )
        self._shake = shake
        self._socket = socket.create_connection(self._crowd.address)
        self._socket.setblocking(False)
        self._crowd.selector.register(self._socket, selectors.EVENT_READ, self._readable)
        self._socket.send(shake.hello())

    def die(self) -> None:
        """End without a word, as a killed process does."""
        self._over = True
        self._crowd.selector.unregister(self._socket)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._socket.close()

    def _lost(self) -> None:
        self.die()
        self._over = False
        self._failures += 1
        self._crowd.later(TRACKER_BACKOFF.delay_s(self._failures, JITTER.random()), self._dial)

    def _readable(self) -> None:
        if self._over:
            return
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        self._crowd.received_bytes += len(data)
        self._buffer += data
        try:
            if not self._shake.done:
                self._shake_hands()
            self._cut()
        except (OSError, FtcommError) as error:
            print(f"{self._worker_id}: {error}", file=sys.stderr)
            self._lost()

    def _shake_hands(self) -> None:
        while not self._shake.done and len(self._buffer) >= self._shake.bytes_wanted:
            wanted = self._shake.bytes_wanted
            answer = self._shake.receive(self._buffer[:wanted])
            del self._buffer[:wanted]
            if answer:
                self._socket.send(answer)
        if self._shake.done:
            self._say(self._hello())

    def _hello(self) -> Hello:
        return Hello(
            worker_id=self._worker_id,
            nonce=self._nonce,
            incarnation=0,
            host=f"node-{self._worker_id}",
            address="10.100.200.250",
            port=40000,
            plan_epoch=self._epoch,
            revoke_epoch=self._revoked,
            suspects=(),
            closed=False,
            tables=b"t" * 32,
        )

    def _cut(self) -> None:
        while self._shake.done and len(self._buffer) >= 4:
            end = 4 + frame_length(self._buffer[:4])
            if end > len(self._buffer):
                return
            body = bytes(self._buffer[4:end])
            del self._buffer[:end]
            frame = _decode_shared(body) if len(body) > SHARED_BYTES else decode_body(body)
            message = self._joiner.take(frame)
            heard = None if message is None else self._deltas.take(message)
            if heard is not None:
                self._hear(heard)

    def _say(self, message: WorkerMessage) -> None:
        self._socket.sendall(encode(message))

    # --- what a member does -------------------------------------------------------------------

    def _hear(self, message: ControlMessage) -> None:
        crowd = self._crowd
        match message:
            case Welcome():
                self._joined, self._failures = True, 0
                self._size = message.world_size
                crowd.welcomed += 1
                crowd.later(JITTER.uniform(0, crowd.heartbeat_every), self._beat)
            case Revoke(epoch):
                self._revoked = epoch
                crowd.revoked[epoch] += 1
                crowd.revoked_at[epoch] = time.monotonic()
                self._say(self._report(epoch))
            case Plan():
                self._take(message)
            case HeartbeatAck():
                pass
            case _:
                pass  # Settled

    def _take(self, plan: Plan) -> None:
        crowd = self._crowd
        self._epoch, self._index = plan.epoch, plan.rank
        crowd.planned[plan.epoch] += 1
        crowd.planned_at[plan.epoch] = time.monotonic()
        if plan.fetches or plan.load_from or plan.locals:
            self._say(Fetched(plan.epoch))
        self._position = WORKS_AT
        self._say(Resumed(plan.epoch, 0, 0, 0, 0))

    def _report(self, epoch: int) -> Report:
        works = self._position == WORKS_AT
        version = WORKS_AT.version
        stride = keep_stride(self._size, 2)
        kept = [
            PositionRange(version, seqno, seqno + 1)
            for seqno in kept_seqnos(self._index, WORKS_AT.seqno - RECENT, stride)
        ]
        recent = PositionRange(version, WORKS_AT.seqno - RECENT, WORKS_AT.seqno)
        return Report(
            epoch=epoch,
            position=self._position,
            committed=version if works else -1,
            tentative=-1,
            digest=b"",
            runs=(*kept, recent) if works else (),
            prelude_length=0 if works else -1,
            caught_up=self._epoch,
            suspects=(),
            signature=b"",
            site="",
            closed=False,
        )

    def _beat(self) -> None:
        if self._over or not self._joined:
            return
        self._number += 1
        self._say(Heartbeat(self._number, self._epoch, self._position))
        self._crowd.later(self._crowd.heartbeat_every, self._beat)


def main() -> None:
    """Be the workers that stdin says."""
    host, port, token_file, heartbeat_every = sys.argv[1:]
    key = control_key(read_token(Path(token_file)))
    Crowd((host, int(port)), key, float(heartbeat_every)).serve()


if __name__ == "__main__":
    main()
