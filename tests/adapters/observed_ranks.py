"""Ranks that kill a process of theirs, and tell a test what happens to them until they end."""

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import psutil

import ftcomm

WITHIN_S = 120.0  # for a word that a test waits for, on a busy machine
VICTIMS = ("self", "parent", "grandparent", "nobody")


class Observer:
    """Hears the words of ranks, in this process, and when their processes end."""

    def __enter__(self) -> Self:
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._words: list[tuple[str, str]] = []
        self.address = self._listener.getsockname()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # sockets alone are registered
        self._selector.close()

    def hear_until(self, word: str, ranks: int) -> dict[str, list[str]]:
        """The words of each rank, once so many have said `word`, which may begin theirs.

        The last word of a rank is "ended", once its process has.
        """
        until = time.monotonic() + WITHIN_S
        heard: dict[str, list[str]] = {}
        while sum(any(said.startswith(word) for said in each) for each in heard.values()) < ranks:
            assert time.monotonic() < until, f"no rank says {word!r} in time: {heard}"
            rank, said = self._hear(until)
            heard.setdefault(rank, []).append(said)
        return heard

    def _hear(self, until: float) -> tuple[str, str]:
        while not self._words:
            ready = self._selector.select(until - time.monotonic())
            assert ready, "no rank says anything"
            for key, _ in ready:
                self._take(key)
        return self._words.pop(0)

    def _take(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._listener:
            connection, _ = self._listener.accept()
            rank = connection.recv(1).decode()
            self._selector.register(connection, selectors.EVENT_READ, rank)
            return
        connection = key.fileobj
        assert isinstance(connection, socket.socket)
        try:
            data = connection.recv(4096)
        except ConnectionResetError:
            data = b""
        if not data:
            self._selector.unregister(connection)
            connection.close()
        words = data.decode().split("\n")[:-1] if data else ["ended"]
        self._words += [(key.data, word) for word in words]


def train(
    steps: int, kills: Sequence[str] = (), folder: str = "", observer: Any = None
) -> tuple[int, bytes]:
    """Rank and bytes of a model.

    Args:
        steps: of the training, each with a checkpoint.
        kills: ``rank.step.victim``, each once; the victim is the rank's own process, its parent,
            its grandparent, or nobody: the rank says so, and waits for its end.
        folder: where each kill leaves a mark.
        observer: address of an `Observer`.
    """
    with ftcomm.init() as comm, contextlib.ExitStack() as stack:
        say = _talk(stack, observer, comm.rank)
        say(f"joined {os.getpid()} {os.getppid()}")
        try:
            version, weights = comm.load_checkpoint(default=np.zeros(100))
            for step in range(version, steps):
                for victim in VICTIMS:
                    if f"{comm.rank}.{step}.{victim}" in kills:
                        _kill_once(Path(folder) / f"{comm.rank}.{step}", victim, say)
                weights = weights + comm.allreduce(np.sin(weights * (comm.rank + 1)) + step)
                comm.checkpoint(weights)
                say(f"step {step}")
        except BaseException as error:
            say(f"raised {type(error).__name__}")
            raise
    return comm.rank, weights.tobytes()


def fail(rank: int, error: Exception, folder: str, *, joined: bool = True) -> None:
    """One rank fails, before it has joined or after; the others wait, and note what they raise."""
    if not joined and os.environ["FTCOMM_WORKER_ID"] == str(rank):
        raise error
    try:
        with ftcomm.init() as comm:
            comm.barrier()
            if comm.rank == rank:
                raise error
            comm.barrier()
    except ftcomm.FtcommError as caught:
        (Path(folder) / os.environ["FTCOMM_WORKER_ID"]).write_text(str(caught))
        raise


def _talk(stack: contextlib.ExitStack, observer: Any, rank: int) -> Any:
    if observer is None:
        return lambda _: None
    connection = stack.enter_context(socket.create_connection(tuple(observer)))
    connection.sendall(str(rank).encode())
    return lambda word: connection.sendall(f"{word}\n".encode())


def _kill_once(mark: Path, victim: str, say: Callable[[str], object]) -> None:
    if mark.exists():
        return
    mark.touch()
    parent = os.getppid()
    pids = {"self": os.getpid(), "parent": parent, "grandparent": psutil.Process(parent).ppid()}
    if victim == "nobody":
        say("waits")
    else:
        os.kill(pids[victim], signal.SIGKILL)
    while True:  # the process of a rank ends with its parent
        signal.pause()
