"""Workers that a zygote forks: as by a fresh interpreter, and safe when the zygote dies."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from ftcomm.config.backoff import Backoff
from ftcomm.errors import ConfigError
from ftcomm_tracker.launcher.console import Console
from ftcomm_tracker.launcher.log_lines import LineFormat
from ftcomm_tracker.launcher.processes import zygote
from ftcomm_tracker.launcher.processes.child_process import Child, start_child
from ftcomm_tracker.launcher.processes.python_command import parse_python_command
from tests.unit.tracker.test_launcher import environment, said_pids, started, wait_gone

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="--prefork needs Linux"),
]
FACTS = """
import ctypes, json, os, signal, sys, threading
death = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(death))
streams = (sys.stdin, sys.stdout, sys.stderr)
print(json.dumps({
    "module": sorted((name, str(value)) for name, value in globals().items() if name[:2] == "__"
        and name not in ("__loader__", "__builtins__", "__spec__")),
    "loader": getattr(__loader__, "__name__", type(__loader__).__name__),
    "spec": getattr(__spec__, "name", None),
    "main": sys.modules["__main__"].__dict__ is globals(),
    "argv": [sys.argv, sys.orig_argv, sys.path, sys.executable, str(sys.flags), os.getcwd()],
    "streams": [(s.fileno(), s.line_buffering, s.write_through, s.encoding, s.errors, s.mode,
        s.seekable(), s.isatty()) for s in streams],
    "files": sorted(os.listdir("/proc/self/fd")),
    "signals": [str(signal.getsignal(s)) for s in sorted(signal.valid_signals() - {9, 19})],
    "mask": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "group": [os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid(), death.value],
    "variables": {k: v for k, v in os.environ.items() if k not in ("FTCOMM_TRACKER",
        "FTCOMM_TOKEN_FILE")},
    "threads": [thread.name for thread in threading.enumerate()],
    "hook": sys.excepthook is sys.__excepthook__,
}))
raise SystemExit(64)
"""


def launch(
    *options: str, command: list[str], n: int = 1, cwd: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    head = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(n), *options, "--"]
    return subprocess.run(
        [*head, *command],
        env=environment(OMP_NUM_THREADS="1"),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def both(command: list[str], cwd: Path) -> list["subprocess.CompletedProcess[str]"]:
    return [launch(*options, command=command, cwd=cwd) for options in ((), ("--prefork",))]


def facts(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("[0] {")]
    found: dict[str, Any] = json.loads(line.removeprefix("[0] "))
    return found


@pytest.mark.parametrize(
    "words",
    [
        ["./facts.py", "a", "-b"],
        ["package/facts.py"],
        ["-u", "-Wignore", "-m", "package.facts", "x"],
        ["-O", "-c", FACTS, "y"],
        ["-m", "package"],
        ["package"],
    ],
    ids=["file", "file-in-folder", "module", "code", "package", "folder"],
)
def test_a_forked_worker_finds_what_a_fresh_interpreter_gives_it(
    words: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    for path in (tmp_path / "facts.py", folder / "facts.py", folder / "__main__.py"):
        path.write_text(FACTS)
    (folder / "__init__.py").touch()
    fresh, forked = map(facts, both([sys.executable, *words], tmp_path))
    assert forked == fresh


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("def f():\n    raise ValueError('wrong')\nf()", 83),
        ("if x\n", 83),
        ("import ftcomm\nwith ftcomm.init(bind='x y') as c: pass", 73),
        ("import atexit; atexit.register(print, 'end'); raise SystemExit(64)", 73),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", 73),
        ("import os; os._exit(64)", 73),
    ],
    ids=["error", "syntax", "ours", "exit", "interrupt", "at-once"],
)
def test_a_forked_worker_ends_as_a_fresh_interpreter_does(
    script: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "train.py"]
    options = ("--max-restarts", "1")
    ends = [launch(*options, *more, command=command, cwd=tmp_path) for more in ((), ("--prefork",))]
    own = [[line for line in done.stderr.splitlines() if line.startswith("[0] ")] for done in ends]
    how = [done.stderr.count("was killed by SIGINT") for done in ends]
    assert [done.returncode for done in ends] == [status, status], ends[1].stderr
    assert (own[1], how[1], ends[1].stdout) == (own[0], how[0], ends[0].stdout)


RANDOM = """
import os, random
import ftcomm, numpy as np
print("draws", random.random(), np.random.rand(), np.random.default_rng().random(), flush=True)
with ftcomm.init() as comm:
    version, total = comm.load_checkpoint(default=0.0)
    for step in range(version, 4):
        if step == 2 and comm.rank == 1 and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), 9)
        total = total + comm.allreduce(np.ones(4)).sum()
        comm.checkpoint(total)
print("total", total)
"""


def test_a_killed_worker_is_forked_again_with_random_numbers_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANDOM)
    done = launch("--prefork", command=[sys.executable, "train.py"], n=2, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    draws = [word for line in done.stdout.splitlines() if "draws" in line for word in line.split()]
    numbers = [word for word in draws if "." in word]
    assert (len(numbers), len(set(numbers))) == (9, 9)
    assert done.stdout.count("total 32.0") == 2
    assert "worker 1 was killed by SIGKILL: starting it again" in done.stderr


START_A_THREAD = """
import threading
threading.Thread(target=threading.Event().wait, name="pump", daemon=True).start()
"""


@pytest.mark.parametrize(
    ("name", "module", "words"),
    [
        ("busy", START_A_THREAD, "module busy has started 1 thread(s) (pump)"),
        ("missing_module", "", "cannot import missing_module"),
        ("busy", "import os\nos._exit(3)", "ended before it was ready"),
    ],
    ids=["thread", "missing", "ends"],
)
def test_a_module_that_cannot_be_preloaded_is_refused(
    name: str, module: str, words: str, tmp_path: Path
) -> None:
    options = ("--prefork", "--preload", name, "--max-restarts", "0")
    (tmp_path / "busy.py").write_text(module)
    (tmp_path / "train.py").write_text("print('started')")
    done = launch(*options, command=[sys.executable, "train.py"], cwd=tmp_path)
    assert (done.returncode, words in done.stderr, done.stdout) == (64, True, ""), done.stderr


def test_a_command_that_is_no_python_script_is_refused() -> None:
    done = launch("--prefork", command=["/bin/sh", "-c", "true"])
    assert (done.returncode, "'/bin/sh' is no Python interpreter" in done.stderr) == (64, True)
    done = launch("--preload", "json", command=[sys.executable, "-c", "pass"])
    assert (done.returncode, "--preload needs --prefork" in done.stderr) == (2, True)


SAY_AND_WAIT = """
import os, signal
print("pid", os.getpid(), flush=True)
signal.pause()
"""


def start_of(pid: int) -> float:
    """Ticks at which a process began; the zygote is the launcher's first child."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:  # a worker that has ended since it was listed
        return math.inf


def children_of(pid: int) -> dict[int, str]:
    """Number and state of each child process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid:
            found[int(path.parent.name)] = state
    return found


def test_workers_outlive_their_zygote_and_die_with_their_launcher() -> None:
    """The zygote ends twice: a worker is then started without one, and by the next one."""
    with started("--prefork", "--max-restarts", "9", script=SAY_AND_WAIT, n=2) as launcher:
        assert launcher.stderr is not None
        workers = said_pids(launcher, 2)
        family = children_of(launcher.pid)
        zygote = min(family, key=start_of)
        assert family.keys() == {zygote, *workers}
        assert children_of(zygote) == {}
        os.kill(zygote, signal.SIGKILL)
        wait_gone([zygote])
        os.kill(workers[0], signal.SIGKILL)
        again = said_pids(launcher, 1)[0]
        said = ""
        while "starting it again" not in said:
            said += launcher.stderr.readline()
        left = children_of(launcher.pid)
        assert set(left) >= {again, workers[1]}
        assert "Z" not in left.values()
        launcher.kill()
        wait_gone([again, workers[1]])


def test_a_hundred_forks_leave_neither_zombies_nor_descriptors() -> None:
    script = """
import os, subprocess, sys
print("pid", os.getpid(), flush=True)
if os.fork() == 0:
    os.setsid()
    os._exit(0)  # an orphan, outside the group
os.kill(os.getpid(), 9)
"""
    with started(
        "--prefork", "--detect-within", "1", "--restart-window", "0.001", script=script, n=2
    ) as launcher:
        said_pids(launcher, 5)
        zygote = min(children_of(launcher.pid), key=start_of)

        def held() -> list[int]:
            return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (zygote, launcher.pid)]

        before = held()
        said_pids(launcher, 100)
        after = held()
        assert len(children_of(zygote)) < 20
        assert [now - then < 20 for now, then in zip(after, before, strict=True)] == [True] * 2
        assert list(children_of(launcher.pid).values()).count("Z") < 60


ANSWERS_AND_ENDS = """
import json, os, socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
channel.send(b"{}")
"""


@pytest.mark.trio
@pytest.mark.parametrize(
    "refusal",
    [
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ConfigError("cannot run 'python': No such file", remedy="check the command after --"),
    ],
    ids=["memory", "command"],
)
async def test_a_zygote_that_cannot_be_started_again_is_started_later(
    refusal: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = 0
    said: list[str] = []
    is_back = trio.Event()

    def start(
        name: str, words: list[str], variables: dict[str, str], *, pass_fds: tuple[int, ...]
    ) -> Child:
        nonlocal starts
        starts += 1
        if starts == 2:
            raise refusal
        if starts == 3:
            is_back.set()
        command = [sys.executable, "-c", ANSWERS_AND_ENDS, str(pass_fds[0])]
        return start_child(name, command, variables, pass_fds=pass_fds)

    monkeypatch.setattr(zygote, "start_child", start)
    monkeypatch.setattr(zygote, "RESTART_BACKOFF", Backoff((0.0,)))
    console = Console(LineFormat(False, lambda: 0.0), write=lambda number, data: None)
    monkeypatch.setattr(console, "warn", said.append)
    command = parse_python_command([sys.executable, "-c", "pass"])
    async with trio.open_nursery() as nursery:
        await nursery.start(zygote.Zygote(command, (), environment(), console).run)
        with trio.fail_after(60):
            await is_back.wait()
        nursery.cancel_scope.cancel()
    why = getattr(refusal, "cause", str(refusal))
    assert (why in said[1], "starting another one" in said[1]) == (True, True)


@pytest.mark.trio
async def test_a_first_zygote_for_which_there_is_no_memory_refuses_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(*arguments: object, **options: object) -> Child:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(zygote, "start_child", start)
    console = Console(LineFormat(False, lambda: 0.0), write=lambda number, data: None)
    command = parse_python_command([sys.executable, "-c", "pass"])
    with pytest.raises(ConfigError, match=r"--prefork: .*Cannot allocate memory"):
        await zygote.Zygote(command, (), environment(), console).run()
