"""A process with its imports done, which forks workers on request and reports how they end.

`Forker` starts it, and orders one worker with each JSON line.  It answers with one line when a
worker has started, one each time that it is stopped, and one when it has ended.  It dies with the
tests, and its workers die with it.
"""

import atexit
import ctypes
import importlib
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import ftcomm

ROOT = Path(__file__).parents[2]
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class Forker:
    """The process that forks workers; one for all jobs of a session.

    Attributes:
        process: its standard output has its answers.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start one that imports `modules`; all workers have its environment."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.forker", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the tests have one thread
        )

    def start(
        self,
        name: str,
        words: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        *,
        folder: Path = ROOT,
        fresh: bool = False,
    ) -> None:
        """Order one worker; its start and its end arrive as lines.

        Args:
            name: in those lines.
            words: behind the interpreter on a command line: ``-m MODULE``, which must have been
                imported, or ``FILE ...``.
            env: its own variables.
            log: file to which its output is appended.
            folder: in which it runs.
            fresh: it is a new interpreter.
        """
        order = {
            "name": name,
            "words": list(words),
            "env": dict(env),
            "log": str(log),
            "folder": str(folder),
            "fresh": fresh,
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """End it; its workers die with it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def main() -> None:
    """Serve until the standard input ends."""
    die_with_parent()
    assert callable(ftcomm.init)  # names are resolved on first use: now, once for all workers
    for module in sys.argv[1:]:
        importlib.import_module(module)
    answers = os.dup(1)
    os.dup2(2, 1)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    names: dict[int, str] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        rest = b""
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if woken in ready:
                os.read(woken, 4096)
                _reap(names, answers)
            if 0 in ready:
                data = os.read(0, 1 << 16)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    _start(json.loads(line), names, answers)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent is gone."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _start(order: dict[str, Any], names: dict[int, str], answers: int) -> None:
    pid = os.fork()
    if pid == 0:
        _become_worker(order)
    names[pid] = order["name"]
    _answer(answers, {"name": order["name"], "pid": pid, "fresh": order["fresh"]})


def _become_worker(order: dict[str, Any]) -> NoReturn:
    status = 1
    try:
        die_with_parent()
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.closerange(3, 64)
        os.environ.update(order["env"])
        os.chdir(order["folder"])
        if order["fresh"]:
            os.execv(sys.executable, [sys.executable, *order["words"]])
        status = _run_here(order["words"])
    finally:
        os._exit(status)


def _run_here(words: list[str]) -> int:
    """Imitate the interpreter around a script, and return the exit status."""
    try:
        _run(words)
    except SystemExit as end:
        return _code(end)
    except BaseException:  # noqa: BLE001 - the hook prints it, as the interpreter would
        try:
            sys.excepthook(*sys.exc_info())
        except SystemExit as end:
            return _code(end)
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _run(words: list[str]) -> None:
    if words[0] == "-m":
        sys.modules[words[1]].main()
        return
    importlib.import_module("numpy.random").seed()  # else all workers would draw the same
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a kill loses nothing
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")
    atexit._run_exitfuncs()


def _code(end: SystemExit) -> int:
    return end.code if isinstance(end.code, int) else int(end.code is not None)


def _reap(names: dict[int, str], answers: int) -> None:
    while names:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            _answer(answers, {"name": names[pid], "pid": pid, "stopped": os.WSTOPSIG(status)})
            continue
        code = os.waitstatus_to_exitcode(status)
        _answer(answers, {"name": names.pop(pid), "pid": pid, "status": code})


def _answer(answers: int, message: dict[str, Any]) -> None:
    os.write(answers, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
