"""The zygote: a process without threads that has imported what a worker needs, and forks workers.

It runs the worker's interpreter with the worker's options and environment.  Each request carries
the descriptors of a new process's streams.  The new process is forked twice, so that the launcher,
which adopts orphans, becomes its parent: it sees the exit itself, and the process lives on if the
zygote dies.

::

    launcher                 zygote                  child of it     worker
      | request, descriptors -> |                         |
      |                         | fork -----------------> | fork -------> | setsid
      |                         | <---------- its number, through a pipe -|
      |                         | waits for the end of -> x               |
      | <---------- its number  |                                         |
      | one byte: "go" -------------------------------------------------> | runs the script
"""

import contextlib
import gc
import importlib
import json
import os
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcomm.config.environment import change_environment
from ftcomm_tracker.launcher.processes.linux_calls import die_with_parent
from ftcomm_tracker.launcher.processes.python_command import PythonCommand
from ftcomm_tracker.launcher.processes.script_runner import run_script, set_import_path

MAX_REQUEST_BYTES = 64 << 10  # a few variables of one worker
STREAMS = 3  # descriptors of a request: output, error output, and the pipe of "go"
GO = b"g"
# What a worker imports by itself, up to the end of its first recovery.
WORKER_MODULES = ("numpy", "numpy.random", "ftcomm.join", "encodings.idna", "encodings.ascii")


class RefusalError(Exception):
    """A module cannot be imported in a process that will fork."""


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """One worker to fork.

    Attributes:
        environment: its own variables; the rest it has from the zygote.
        descriptors: output, error output, "go".
    """

    environment: dict[str, str]
    descriptors: tuple[int, ...]


def main() -> None:
    """Import, then serve requests; in a forked worker, run the script."""
    config: dict[str, Any] = json.loads(sys.argv[1])
    command = PythonCommand.from_dict(config["command"])
    channel = socket.socket(fileno=config["channel"])
    set_import_path(command)
    try:
        import_all([*WORKER_MODULES, *config["preload"]])
    except RefusalError as refusal:
        channel.sendall(json.dumps({"refused": str(refusal)}).encode())
        return
    gc.collect()
    gc.freeze()  # the workers share these pages until they write
    channel.sendall(json.dumps({"ready": os.getpid()}).encode())
    request = serve(channel)
    if request is not None:
        become_worker(request, config["launcher"])
        run_script(command)


def import_all(modules: Sequence[str]) -> None:
    """Import `modules`.

    Raises:
        RefusalError: one cannot be imported, has started a thread or initialised CUDA.
    """
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # any module may be named
            raise RefusalError(f"cannot import {name}: {type(error).__name__}: {error}") from error
        if threads := names_of_threads():
            raise RefusalError(
                f"module {name} has started {len(threads)} thread(s) ({', '.join(threads)}), and a"
                " process with threads cannot be forked safely; set OMP_NUM_THREADS=1 if these are"
                " threads of BLAS, else do not preload it"
            )
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RefusalError("a preloaded module has initialised CUDA, which a forked process lacks")


def names_of_threads() -> list[str]:
    """Names of the threads of this process beside the main one, as far as they have any."""
    ours = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    tasks = sorted(path.name for path in Path("/proc/self/task").iterdir())
    return [ours.get(task) or _kernel_name(task) for task in tasks if task != str(os.getpid())]


def _kernel_name(task: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/self/task/{task}/comm").read_text(encoding="utf-8").strip()
    return task


def serve(channel: socket.socket) -> ForkRequest | None:
    """Fork a worker for each request; returns the request in a worker, None at the end."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, MAX_REQUEST_BYTES, STREAMS)
        if not data:
            return None
        request = ForkRequest(json.loads(data), tuple(descriptors))
        number = fork_twice()
        if number == 0:
            channel.close()
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        channel.sendall(json.dumps({"forked": number}).encode())


def fork_twice() -> int:
    """Fork a process that is nobody's child here; returns its number, 0 in that process."""
    sys.stdout.flush()
    sys.stderr.flush()
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        _leave_a_child()
        os.setsid()  # before its number is known: whoever knows it may signal its group
        os.write(writable, b"%d" % os.getpid())
        os.close(readable)
        os.close(writable)
        return 0
    os.close(writable)
    number = os.read(readable, 32)
    os.close(readable)
    os.waitpid(child, 0)
    if not number:
        raise ChildProcessError("the second fork failed")  # ends the zygote; another one starts
    return int(number)


def _leave_a_child() -> None:
    """Fork, and end in the parent: only its child returns."""
    status = 1
    try:
        status = 0 if os.fork() else -1
    finally:
        if status >= 0:  # also after an error: this is no zygote and no worker
            os._exit(status)


def become_worker(request: ForkRequest, launcher: int) -> None:
    """Wait for the launcher's word, then take streams, environment and random state of a worker."""
    output, errors, go = request.descriptors
    if os.read(go, 1) != GO:
        os._exit(1)  # the launcher has started another process, or is gone
    os.close(go)
    die_with_parent(launcher)
    for number, descriptor in ((1, output), (2, errors)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    change_environment(request.environment)
    # Python's own generator seeds itself after a fork; numpy's does not.
    sys.modules["numpy.random"].seed()
