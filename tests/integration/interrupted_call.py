"""A signal handler that leaves the job, while its thread holds a lock of the library's.

    python -m tests.integration.interrupted_call allreduce

A process of its own, as it may hang, and as handlers run on the main thread.
"""

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import ftcomm
from ftcomm.config import joined_process
from ftcomm.join import init_beside
from ftcomm_tracker.embedding.tracker import Tracker

Call = Callable[[ftcomm.Communicator], Any]
ENGINES: dict[ftcomm.Communicator, Any] = {}  # the task engine of each, if it has one


class InterruptedLock:
    """A lock; behind taking it a handler runs once, on the main thread."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._handler: Callable[[], object] | None = None
        self.has_run = False

    def arm(self, handler: Callable[[], object]) -> None:
        self._handler = handler

    def __enter__(self) -> None:
        self._lock.acquire()
        is_here = threading.current_thread() is threading.main_thread()
        if is_here and self._handler is not None:
            handler, self._handler = self._handler, None
            handler()
            self.has_run = True

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def in_hub(comm: ftcomm.Communicator) -> InterruptedLock:
    hub: Any = comm._session.engine._hub  # type: ignore[attr-defined]  # it has one in a group
    hub.lock = hub.receives._lock = lock = InterruptedLock(hub.lock)
    return lock


def in_queue(comm: ftcomm.Communicator) -> InterruptedLock:
    queue: Any = comm._session.background.queue  # type: ignore[attr-defined]  # of what the session needs a part
    queue._lock = lock = InterruptedLock(queue._lock)
    return lock


def in_end(_: ftcomm.Communicator) -> InterruptedLock:
    joined: Any = joined_process
    joined._writing = lock = InterruptedLock(joined._writing)
    return lock


def in_tasks(comm: ftcomm.Communicator) -> InterruptedLock:
    engine: Any = comm.engine()
    ENGINES[comm] = engine
    engine._lock = lock = InterruptedLock(engine._lock)
    return lock


def send(comm: ftcomm.Communicator) -> Any:
    comm.send(np.ones(3), 1)
    return comm.recv(1)


def receive_nothing(comm: ftcomm.Communicator) -> Any:
    return comm.recv(1 - comm.rank, "nothing")


def leave(comm: ftcomm.Communicator) -> Any:
    comm.abort("by the script")
    return comm.barrier()


def push(comm: ftcomm.Communicator) -> Any:
    ENGINES[comm].push(int)
    ENGINES[comm].wait()


@dataclass(frozen=True)
class Case:
    """The calls of both ranks, and the lock under which rank 0 is interrupted."""

    call: Call
    lock: Callable[[ftcomm.Communicator], InterruptedLock] = in_hub
    other_call: Call = receive_nothing
    aborts: int = 1


def allreduce(comm: ftcomm.Communicator) -> Any:
    return comm.allreduce(np.ones(3))


def begun(comm: ftcomm.Communicator) -> Any:
    return comm.iallreduce(np.ones(3)).wait()


CASES = {
    "allreduce": Case(allreduce, other_call=allreduce),
    "iallreduce": Case(begun, in_queue, begun),
    "send": Case(send),
    "recv": Case(receive_nothing),
    "irecv": Case(lambda comm: comm.irecv(1).wait()),
    "twice": Case(receive_nothing, aborts=2),
    "task": Case(push, in_tasks),
    "end": Case(leave, in_end),
    "alone": Case(begun, in_queue),
}


def main(name: str) -> None:
    """Leave in the middle of a call, which raises; the other rank loses this one."""
    case = CASES[name]
    if name == "alone":
        sys.stdout.write(_of_the_interrupted(ftcomm.init("none"), case))
        return
    told: list[str] = []
    with Tracker(2, settings={"replace_within": 0}) as tracker:

        def join(rank: int) -> ftcomm.Communicator:
            token, job = tracker.token_file, f"rank {rank}"
            return init_beside(tracker.address, worker_id=str(rank), token_file=token, job=job)

        def other() -> None:
            comm = join(1)
            comm.load_checkpoint(default=0)
            told.append(_error_of(comm, case.other_call))

        thread = threading.Thread(target=other, daemon=True)  # a failure here ends the process
        thread.start()
        error = _of_the_interrupted(join(0), case)
        thread.join()
    sys.stdout.write(f"{error} {told[0]}")


def _of_the_interrupted(comm: ftcomm.Communicator, case: Case) -> str:
    comm.load_checkpoint(default=0)
    lock = case.lock(comm)
    lock.arm(lambda: [comm.abort("preempted") for _ in range(case.aborts)])
    error = _error_of(comm, case.call)
    assert lock.has_run, "the call takes no lock"
    assert comm.is_over, "the handler has left"
    return error


def _error_of(comm: ftcomm.Communicator, call: Call) -> str:
    """The error of the call, or of one behind it: not each takes the lock, or goes on behind it."""
    try:
        while True:
            call(comm)
    except ftcomm.FtcommError as error:
        return type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1])
