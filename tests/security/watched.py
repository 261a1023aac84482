"""A tracker or a worker under an audit hook that writes down what no byte of a peer may cause.

    python -m tests.security.watched LOG tracker ARGUMENTS...    # of ftcomm-tracker
    python -m tests.security.watched LOG worker                  # a step for each line it reads
    python -m tests.security.watched LOG canary SONG             # does what is forbidden

The watch begins when start-up is over: a tracker listens, a worker is a member.
"""

import json
import marshal
import os
import pickle
import sys
from types import FrameType
from typing import Any

import numpy as np

import ftcomm
from ftcomm_tracker.cli.main import main as tracker_command

FORBIDDEN = {
    "pickle.find_class",
    "marshal.load",
    "marshal.loads",
    "exec",
    "compile",
    "code.__new__",
    "function.__new__",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.spawn",
    "subprocess.Popen",
    "shelve.open",
    "webbrowser.open",
}
FORBIDDEN_MODULES = {"pickle", "_pickle", "shelve", "dill", "cloudpickle", "ctypes", "subprocess"}


class Watch:
    """Writes one line for each forbidden event; never raises, so that nothing can swallow it."""

    def __init__(self, log: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.armed = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.listen":
            self.armed = self.armed or sys.argv[2] == "tracker"
        if not self.armed:
            return
        if event == "import":
            if arguments[0] in FORBIDDEN_MODULES:
                self._note(f"import {arguments[0]}")
        elif _is_forbidden(event) and not _is_import(sys._getframe(1)):
            self._note(f"{event} {str(arguments)[:200]}")

    def _note(self, text: str) -> None:
        os.write(self._log, text.encode("utf-8", "replace") + b"\n")


def _is_forbidden(event: str) -> bool:
    return event in FORBIDDEN or event.startswith("ctypes.")


def _is_import(frame: FrameType | None) -> bool:
    """An import that was put off until it is needed reads code of the installation alone."""
    return frame is not None and frame.f_code.co_filename.startswith("<frozen importlib")


def main() -> None:
    """Run as the command line says."""
    log, role, *arguments = sys.argv[1:]
    watch = Watch(log)
    sys.addaudithook(watch)
    if role == "canary":
        watch.armed = True
        _be_a_canary(arguments[0])
    elif role == "worker":
        _work(watch)
    else:
        sys.argv[1:] = ["x", role, *arguments]  # where the hook looks for the role
        tracker_command(arguments, prog_name="ftcomm-tracker")


def _be_a_canary(song: str) -> None:
    if song == "pickle":
        pickle.loads(b"cos\ngetpid\n.")
    elif song == "marshal":
        marshal.loads(marshal.dumps(1))
    elif song == "eval":
        eval("1 + 1")
    elif song == "system":
        os.system("true")


def _work(watch: Watch) -> None:
    with ftcomm.init() as comm:
        comm.load_checkpoint(default=None)
        watch.armed = True
        _say({"port": comm._session.engine._hub.core.contact.identity.port, "rank": comm.rank})
        for line in sys.stdin:
            if line == "close\n":
                break
            comm.broadcast(np.zeros(1))  # by a link, which an attack may be on
            total = comm.allreduce(np.arange(4.0) + comm.rank)
            _say({"sum": total.tolist(), "epoch": comm.epoch})


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
