"""A signal handler that leaves the job, while its thread holds a lock of the library's.

    python -m tests.integration.interrupted_call allreduce

A process of its own, as it may hang.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import ftcomm
from ftcomm.testing import local_group

Call = Callable[[ftcomm.Communicator], Any]


class InterruptedLock:
    """A lock; behind taking it a handler runs once, on the thread that has armed it."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._armed: tuple[threading.Thread, Callable[[], object]] | None = None
        self.has_run = False

    def arm(self, handler: Callable[[], object]) -> None:
        self._armed = threading.current_thread(), handler

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._armed is not None and self._armed[0] is threading.current_thread():
            (_, handler), self._armed = self._armed, None
            handler()
            self.has_run = True

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def allreduce(comm: ftcomm.Communicator) -> Any:
    return comm.allreduce(np.ones(3))


def begun(comm: ftcomm.Communicator) -> Any:
    return comm.iallreduce(np.ones(3)).wait()


def send(comm: ftcomm.Communicator) -> Any:
    comm.send(np.ones(3), 1)
    return comm.recv(1)


def recv(comm: ftcomm.Communicator) -> Any:
    return comm.recv(1)


def irecv(comm: ftcomm.Communicator) -> Any:
    return comm.irecv(1).wait()


def receive_nothing(comm: ftcomm.Communicator) -> Any:
    return comm.recv(0, "nothing")


CALLS: dict[str, tuple[Call, Call]] = {  # of rank 0, and of rank 1, which waits
    "allreduce": (allreduce, allreduce),
    "iallreduce": (begun, begun),
    "send": (send, receive_nothing),
    "recv": (recv, receive_nothing),
    "irecv": (irecv, receive_nothing),
}


def main(name: str) -> None:
    """Leave in the middle of a call, which raises; the other rank is told."""
    call, other_call = CALLS[name]

    def leave(comm: ftcomm.Communicator) -> str:
        comm.load_checkpoint(default=0)
        if comm.rank == 1:
            return _error_of(lambda: other_call(comm))
        session: Any = comm._session
        hub, queue = session.engine._hub, session.background.queue
        lock = InterruptedLock(queue._lock if call is begun else hub.lock)
        if call is begun:
            queue._lock = lock
        else:
            hub.lock = hub.receives._lock = lock
        lock.arm(lambda: comm.abort("preempted"))
        error = _error_of(lambda: call(comm))
        assert lock.has_run, "the call takes no lock"
        assert comm.is_over, "the handler has left"
        return error

    with local_group(2) as group:
        sys.stdout.write(" ".join(group.run(leave)))


def _error_of(call: Callable[[], object]) -> str:
    """The error of a call, or of one behind it: it may have been all but complete."""
    try:
        for _ in range(5):
            call()
    except ftcomm.FtcommError as error:
        return type(error).__name__
    return "none"


if __name__ == "__main__":
    main(sys.argv[1])
