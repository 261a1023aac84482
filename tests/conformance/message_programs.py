"""Programs of messages from rank to rank; what each must receive is known without the others."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.conformance.kinds import same
from tests.conformance.recorder import Recorder

Array = np.ndarray[Any, Any]
LARGE = 60_000  # elements: 480 KB, sent behind its head and not with it
BATCHES = 6


class Messages:
    """One rank's messages in one version; every kind ends with all that was sent received."""

    def __init__(self, record: Recorder, state: float) -> None:
        self.record, self.comm, self.state = record, record.comm, state
        self.rank, self.size = self.comm.rank, self.comm.world_size
        self.next, self.previous = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        self.received = 0

    def of(self, rank: int, number: int, count: int = 5) -> Array:
        """The numbers that `rank` sends in its message `number`."""
        rng = np.random.default_rng((rank, number, self.comm.version))
        return rng.standard_normal(count) + self.state

    def get(self, what: str, function: Callable[[], Any], wanted: Any) -> Any:
        """Receive; every process of this rank must get the same."""
        place = f"{self.comm.version}.{self.comm.seqno}/{self.received}@{self.rank}"
        self.received += 1
        got, _ = self.record.local(what, place, lambda: (function(), wanted))
        same(got, wanted, f"{what} on rank {self.rank}")
        return got

    def ring(self) -> None:
        """Small and large arrays, with tags of both types, taken in another order than sent."""
        for number, tag in enumerate((0, "grad", 0, "0")):
            self.comm.send(self.of(self.rank, number), self.next, tag)
        self.comm.send(self.of(self.rank, 9, LARGE), self.next, "large", copy=False)
        out = np.empty(LARGE)
        large = self.of(self.previous, 9, LARGE)
        self.get("large", lambda: self.comm.recv(self.previous, "large", out=out), large)
        for number, tag in ((3, "0"), (0, 0), (2, 0), (1, "grad")):
            wanted = self.of(self.previous, number)
            self.get("recv", lambda tag=tag: self.comm.recv(self.previous, tag), wanted)

    def exchange(self) -> None:
        """Edges to both sides, as a halo exchange has them, and objects."""
        for number in range(3):
            for to, source in ((self.next, self.previous), (self.previous, self.next)):
                mine = self.of(self.rank, number)
                tag = f"{(to - self.rank) % self.size}"
                self.get(
                    "sendrecv",
                    lambda mine=mine, to=to, source=source, tag=tag: self.comm.sendrecv(
                        mine, to, source, send_tag=tag, recv_tag=tag, like=mine
                    ),
                    self.of(source, number),
                )
        self.comm.send_object({"from": self.rank, "x": self.of(self.rank, 7)}, self.next)
        wanted = {"from": self.previous, "x": self.of(self.previous, 7)}
        self.get("object", lambda: self.comm.recv_object(self.previous), wanted)

    def begun(self) -> None:
        """Receives that are posted before anything is sent, waited for in another order."""
        handles = [self.comm.irecv(self.previous, tag) for tag in range(4)]
        seen: list[int] = []
        handles[0].add_done_callback(lambda _: seen.append(self.comm.rank))
        for tag in reversed(range(4)):
            self.comm.isend(self.of(self.rank, tag), self.next, tag).wait()
        for tag in (2, 0, 3, 1):
            self.get("irecv", handles[tag].wait, self.of(self.previous, tag))

    def chain(self) -> None:
        """A pipeline: each stage adds to what the one before has sent; the first waits for none."""
        for number in range(BATCHES):
            x = self.of(0, number)
            if self.rank:
                for stage in range(self.rank):  # one by one: the sum of them would round otherwise
                    x = x + stage
                tag = "forward"
                x = self.get("stage", lambda tag=tag: self.comm.recv(self.rank - 1, tag), x)
            if self.rank + 1 < self.size:
                self.comm.send(x + self.rank, self.rank + 1, "forward")


NAMES = tuple(name for name in vars(Messages) if name in ("ring", "exchange", "begun", "chain"))


def messages(record: Recorder) -> Any:
    """Two versions of the kinds in `kinds`, with a collective behind each."""
    first, state = record.load(0.0)
    for _ in range(first, 2):
        for name in record.spec.get("kinds", NAMES):
            calls = Messages(record, state)
            getattr(calls, name)()
            state = float(record.allreduce(np.array([state + calls.rank]), "max")[0])
        record.checkpoint(state)
    return state


def many_messages(record: Recorder) -> Any:
    """A stream of `number` messages to one rank, which adds them up, and a checkpoint every 100."""
    comm = record.comm
    first, state = record.load(0.0)
    for version in range(first, record.spec["number"] // 100):
        digest = hashlib.sha256()
        for number in range(100):
            if comm.rank == 0:
                comm.send(np.full(3, 100.0 * version + number), 1)
            elif comm.rank == 1:
                digest.update(comm.recv(0).tobytes())
        place = f"{comm.version}.{comm.seqno}@{comm.rank}"
        text = digest.hexdigest()
        record.local("stream", place, lambda text=text: (text, None))
        state = float(record.allreduce(np.array([state + 1.0]), "max")[0])
        record.checkpoint(state)
    return state


def other_message(record: Recorder) -> Any:
    """A restarted rank sends other bytes than those that its receiver has got."""
    comm = record.comm
    record.load(None)
    if comm.rank == 1:
        comm.send(np.full(4, 1.0 + 0.5 * (comm.epoch > 1)), 0, "step")
        comm.recv(0, "answer")
    elif comm.rank == 0:
        x = comm.recv(1, "step")
        comm.send(x, 1, "answer")
    record.allreduce(np.ones(1))
    return record.checkpoint(None)


PROGRAMS = {
    "messages": messages,
    "many_messages": many_messages,
    "other_message": other_message,
}
