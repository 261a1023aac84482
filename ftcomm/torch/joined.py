"""The communicator of this thread, for what is not given one."""

import threading
from typing import Any

import ftcomm

# With ``init(job=...)`` each thread of a process has its own.  Single operations on a dictionary
# need no lock.
_by_thread: dict[threading.Thread, ftcomm.Communicator] = {}


def init(*arguments: Any, **options: Any) -> ftcomm.Communicator:
    """`ftcomm.init`, for `DDP` and ``init_process_group("ftcomm")`` to use its communicator."""
    return use(ftcomm.init(*arguments, **options))


def use(comm: ftcomm.Communicator) -> ftcomm.Communicator:
    """Have `DDP` and ``init_process_group("ftcomm")`` use `comm`, and return it.

    This is for the calling thread, and for threads without a communicator of their own as long as
    the process has no other open one.
    """
    for thread, other in _by_thread.copy().items():
        if other.is_over:
            _by_thread.pop(thread, None)
    _by_thread[threading.current_thread()] = comm
    return comm


def is_joined() -> bool:
    """Tell whether `joined` has a communicator."""
    return _found() is not None


def joined() -> ftcomm.Communicator:
    """The open communicator of `init` or `use`, of this thread or else the only one.

    Raises:
        ConfigError: there is none.
    """
    comm = _found()
    if comm is None:
        raise ftcomm.ConfigError(
            "this thread has no open communicator for torch",
            remedy="call ftcomm.torch.init() first, or ftcomm.torch.use() with one that is open",
        )
    return comm


def _found() -> ftcomm.Communicator | None:
    # One that a forked child inherited counts: its calls say what is wrong.
    open_ones = {thread: c for thread, c in _by_thread.copy().items() if not c.is_over}
    own = open_ones.get(threading.current_thread())
    if own is not None:
        return own
    others = set(open_ones.values())
    return others.pop() if len(others) == 1 else None
