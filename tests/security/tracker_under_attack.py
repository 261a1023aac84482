"""A job under attack: a real tracker, two real workers, and the doors that unknown peers find."""

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ftcomm.collectives.selection import tables_digest
from ftcomm.config.environment import read_token
from ftcomm.control.links.unix_sockets import local_name
from ftcomm.protocol.codec import Decoder, encode
from ftcomm.protocol.handshake import (
    NONCE_BYTES,
    ClientHandshake,
    DataContext,
    control_key,
    epoch_key,
)
from ftcomm.protocol.link_messages import FetchEnd, FetchRequest
from ftcomm.protocol.messages import (
    ControlMessage,
    Hello,
    Welcome,
)
from ftcomm.protocol.operator_messages import StatusReply, StatusRequest
from ftcomm.protocol.spares.prefetch_messages import Prefetch
from tests.helpers.forker import die_with_parent
from tests.unit.tracker.harness import hello

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30.0  # far above any deadline of the product; a machine may be busy
STREAMS = 3  # of links by TCP; the two workers are on one host and need none
SUM = [1.0, 3.0, 5.0, 7.0]  # of one step
DOORS = ("tracker", "worker by TCP", "worker by Unix socket")


class Caller:
    """A raw connection; what comes back is read with a limit."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._decoder = Decoder()
        self._inbox: list[ControlMessage] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def exactly(self, count: int) -> bytes:
        """`count` bytes, or an error if the other side ends before."""
        data = b""
        while len(data) < count:
            piece = self.sock.recv(count - len(data))
            if not piece:
                raise ConnectionAbortedError(f"ended after {len(data)} of {count} bytes")
            data += piece
        return data

    def send(self, *messages: ControlMessage) -> None:
        """Framed messages."""
        self.sock.sendall(b"".join(encode(message) for message in messages))

    def receive(self) -> ControlMessage:
        """The next message but `Prefetch`, which comes to a spare whenever members commit."""
        while True:
            while not self._inbox:
                data = self.sock.recv(1 << 16)
                if not data:
                    raise ConnectionAbortedError("ended before a message")
                self._inbox += self._decoder.feed(data)
            message = self._inbox.pop(0)
            if not isinstance(message, Prefetch):
                return message

    def until_end(self) -> bytes:
        """All that comes until the other side ends; a socket left open is a failure."""
        data = b""
        try:
            while piece := self.sock.recv(1 << 16):
                data += piece
        except ConnectionError:
            pass
        return data

    def rest(self) -> list[ControlMessage]:
        """All messages until the other side ends, but `Prefetch`, as for `receive`."""
        messages = [*self._inbox, *self._decoder.feed(self.until_end())]
        return [message for message in messages if not isinstance(message, Prefetch)]

    def hang_up(self) -> None:
        """Say that nothing more comes."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def say(self, raw: bytes) -> None:
        """Send what the other side may refuse before it has read it all."""
        with suppress(ConnectionError):
            self.sock.sendall(raw)


@dataclass(frozen=True)
class Door:
    """Address at which unauthenticated peers and honest callers connect, and the honest hello."""

    name: str
    address: Any
    family: int
    key: bytes
    role: str
    context: bytes

    def knock(self) -> Caller:
        """A connection, and not a word."""
        until = time.monotonic() + PATIENCE_S
        while True:
            sock = socket.socket(self.family, socket.SOCK_STREAM)
            sock.settimeout(PATIENCE_S)
            try:
                sock.connect(self.address)
            except OSError as error:  # a Unix socket whose queue is full does not let one wait
                sock.close()
                if not isinstance(error, BlockingIOError) or time.monotonic() > until:
                    raise
                threading.Event().wait(0.01)
            else:
                return Caller(sock)

    def greeting(self, **changes: Any) -> ClientHandshake:
        """The client's side of a handshake, with a lie or two."""
        said = {
            "key": self.key,
            "role": self.role,
            "context": self.context,
            "nonce": os.urandom(NONCE_BYTES),
            **changes,
        }
        key: bytes = said.pop("key")
        return ClientHandshake(key, **said)

    def enter(self, **changes: Any) -> Caller:
        """A connection behind its handshake."""
        caller = self.knock()
        handshake = self.greeting(**changes)
        try:
            caller.sock.sendall(handshake.hello())
            while not handshake.done:
                answer = handshake.receive(caller.exactly(handshake.bytes_wanted))
                if answer:
                    caller.sock.sendall(answer)
        except BaseException:
            caller.sock.close()
            raise
        return caller


def start_watched(
    log: Path, watch: Path, role: str, *arguments: str, **variables: str
) -> subprocess.Popen[bytes]:
    """A process under the audit hook, which writes to `watch`; its standard error goes to `log`."""
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "tracker", "chaos"))
    with log.open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.security.watched", str(watch), role, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            # Interrupted tests leave nothing. To import ctypes there would blind the watch.
            preexec_fn=die_with_parent,  # noqa: PLW1509 - no other thread runs Python just now
        )


class AttackedJob:
    """The job; `doors` by name, `joined_ms` what honest callers waited, `steps` completed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.joined_ms: list[float] = []
        self.steps = 0
        self._numbers = 0
        self.state = folder / "state"
        options = ("-n", "2", "--streams", str(STREAMS), "--state-dir", str(self.state))
        self.tracker = self.start("tracker", "serve", *options)
        facts = dict(word.partition("=")[::2] for word in self.line(self.tracker).split())
        self.job, self.token_file = facts["job"], facts["token_file"]
        self.token = read_token(self.token_file)
        host, _, port = facts["address"].rpartition(":")
        self.address = (host, int(port))
        self.workers = [self.worker(0), self.worker(1)]
        self.ports = [int(json.loads(self.line(worker))["port"]) for worker in self.workers]
        self.renew()

    def renew(self) -> None:
        """Look up the epoch, and the doors, whose keys go with it."""
        self.epoch = self.status()["epoch"]
        self.doors = self._doors()

    def start(self, role: str, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        """A watched process of this job."""
        self._numbers += 1
        log = self.folder / f"{role}-{self._numbers}.log"
        # It lives beside other tests of this process: they must not find it in the list of jobs.
        variables["XDG_STATE_HOME"] = str(self.folder / "home")
        return start_watched(log, self.watch, role, *arguments, **variables)

    def worker(self, number: int) -> subprocess.Popen[bytes]:
        """Start an incarnation of worker `number`."""
        variables = {
            "FTCOMM_TRACKER": f"{self.address[0]}:{self.address[1]}",
            "FTCOMM_TOKEN_FILE": self.token_file,
            "FTCOMM_WORKER_ID": str(number),
            "FTCOMM_LOG": "debug",
        }
        return self.start("worker", **variables)

    @property
    def watch(self) -> Path:
        """File that the audit hooks write."""
        return self.folder / "forbidden"

    def line(self, process: subprocess.Popen[bytes]) -> str:
        """The next line of a process; its log, if there is none."""
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], 2 * PATIENCE_S)
        line = process.stdout.readline() if ready else b""
        assert line, "no answer\n" + self.logs()[-5000:]
        return line.decode()

    def logs(self) -> str:
        """All that the processes wrote on standard error."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def _doors(self) -> dict[str, Door]:
        members = self.status()["members"]
        context = DataContext(self.job, self.epoch, 1, 0, members[1]["incarnation"]).encode()
        links = (epoch_key(self.token, self.job, self.epoch), "fetch", context)
        near = local_name("127.0.0.1", self.ports[0])
        found = [
            Door(DOORS[0], self.address, socket.AF_INET, control_key(self.token), "worker", b""),
            Door(DOORS[1], ("127.0.0.1", self.ports[0]), socket.AF_INET, *links),
        ]
        if near is not None:
            found.append(Door(DOORS[2], near, socket.AF_UNIX, *links))
        return {door.name: door for door in found}

    def status(self) -> dict[str, Any]:
        """The job's status, as an operator sees it."""
        door = Door("", self.address, socket.AF_INET, control_key(self.token), "operator", b"")
        with door.enter() as operator:
            operator.send(StatusRequest())
            reply = operator.receive()
        assert isinstance(reply, StatusReply)
        document: dict[str, Any] = json.loads(reply.document)
        return document

    def step(self) -> list[Any]:
        """One allreduce of both workers."""
        self.steps += 1
        for worker in self.workers:
            ask_for(b"step", worker)
        return [json.loads(self.line(worker)) for worker in self.workers]

    def restart(self, number: int) -> list[Any]:
        """Kill a worker and start another incarnation; return what it replays."""
        forget(self.workers[number])
        self.workers[number] = worker = self.worker(number)
        self.line(worker)
        replayed = []
        for _ in range(self.steps):
            ask_for(b"step", worker)
            replayed.append(json.loads(self.line(worker)))
        return replayed

    def hello(self, name: str, **changes: Any) -> Hello:
        """Return the first message of a worker of this job."""
        return replace(hello(name, nonce=os.urandom(16)), tables=tables_digest(), **changes)

    @contextmanager
    def spare(self, name: str = "") -> Iterator[Caller]:
        """An honest worker who has come too late for a place."""
        self._numbers += 1
        with self.doors["tracker"].enter() as caller:
            caller.send(self.hello(name or f"spare-{self._numbers}"))
            assert isinstance(caller.receive(), Welcome)
            yield caller

    def honest_call(self, door: str) -> None:
        """Somebody who holds the token gets in, and is answered."""
        began = time.monotonic()
        if door == "tracker":
            with self.spare():
                pass
        else:
            with self.doors[door].enter() as caller:
                caller.send(FetchRequest(self.epoch, -1, ()))
                assert caller.receive() == FetchEnd()
        self.joined_ms.append((time.monotonic() - began) * 1000)

    def must_be_unharmed(self, door: str) -> None:
        """Honest callers get in, the epoch is the same, the workers compute what they should."""
        self.honest_call(door)
        right = {"sum": SUM, "epoch": self.epoch}
        assert self.step() == [right, right]
        status = self.status()
        assert status["epoch"] == self.epoch
        assert [row["connected"] for row in status["members"]] == [True, True]
        assert not self.watch.exists() or self.watch.read_text() == ""

    def process_of(self, door: str) -> int:
        """Return the process that listens at an address."""
        return self.tracker.pid if door == "tracker" else self.workers[0].pid

    def must_end_well(self) -> None:
        """Behind all attacks the results are right, and each process ends with status 0."""
        for door in self.doors:
            self.must_be_unharmed(door)
        for worker in self.workers:
            ask_for(b"close", worker)
        ended = [process.wait(2 * PATIENCE_S) for process in (*self.workers, self.tracker)]
        assert ended == [0, 0, 0], self.logs()[-5000:]

    def close(self) -> None:
        """End it."""
        for process in (*self.workers, self.tracker):
            forget(process)


def ask_for(what: bytes, worker: subprocess.Popen[bytes]) -> None:
    """Have a worker take part in one allreduce, whose sum is its answer, or close."""
    assert worker.stdin is not None
    worker.stdin.write(what + b"\n")
    worker.stdin.flush()


def forget(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and close what leads to it."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()


def descriptors(pid: int) -> int:
    """Count the open descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident_mib(pid: int) -> float:
    """Its memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def cpu_s(pid: int) -> float:
    """Processor time that it has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
