"""An interpreter that stands still: something in the process holds the GIL for seconds.

A folder on ``PYTHONPATH`` gives every Python process below it a thread that waits at a pipe of its
own, named by the process's number; the user's script is not changed.  Two ways to hold the lock:
``busy`` computes in one call, as a long ``pickle.dumps`` does; ``asleep`` waits in a C call that
does not release, as a driver does that talks to a device.
"""

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

BUSY: Final = "busy"
ASLEEP: Final = "asleep"
WAYS: Final = (BUSY, ASLEEP)
MODULE = "sitecustomize.py"  # imported by every interpreter at its start, if it is on the path

# Runs in the user's process: no name of it may be seen there, and no error of it may end it.
_INJECTED = '''"""Written for one run by ftcomm-chaos."""


def _wait_for_orders(folder):
    import ctypes, os, threading, time

    pipe = os.path.join(folder, str(os.getpid()))

    def hold(way, seconds):
        if way == "asleep":
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))
            return
        # One call, and no byte code in it after which another thread might run.
        end = time.monotonic() + seconds
        next(filter(end.__lt__, iter(time.monotonic, None)))

    def wait():
        while True:
            with open(pipe) as orders:
                for line in orders:
                    way, seconds = line.split()
                    hold(way, float(seconds))

    try:
        os.mkfifo(pipe, 0o600)
    except FileExistsError:  # the process has become another program, and keeps its number
        pass
    threading.Thread(target=wait, name="ftcomm-chaos", daemon=True).start()


def _go_on():
    """Import the module of this name that we stand before, if there is one."""
    import importlib.machinery, importlib.util, os, sys

    here = os.path.dirname(os.path.abspath(__file__))
    paths = [path for path in sys.path if os.path.abspath(path) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


try:
    _wait_for_orders({folder!r})
finally:
    _go_on()
'''


def write_module(folder: Path) -> Path:
    """Write the module into `folder`; returns the folder, to be put first on ``PYTHONPATH``."""
    pipes = folder / "pipes"
    pipes.mkdir(parents=True)
    (folder / MODULE).write_text(_INJECTED.replace("{folder!r}", repr(str(pipes.absolute()))))
    return folder


def is_ready(folder: Path, pid: int) -> bool:
    """True once the process waits for orders."""
    return (folder / "pipes" / str(pid)).exists()


def hold(folder: Path, pid: int, seconds: float, way: str = BUSY) -> bool:
    """Have a process hold its GIL for about so many seconds, from now; returns at once.

    Returns:
        False if the process does not listen: it has ended, or has not begun.
    """
    assert way in WAYS, way
    try:
        pipe = os.open(folder / "pipes" / str(pid), os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENXIO):
            return False
        raise
    with contextlib.closing(os.fdopen(pipe, "w")) as orders:
        orders.write(f"{way} {seconds}\n")
    return True
