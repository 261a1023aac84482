"""Output and exit status of a script that an error of the library ends."""

import subprocess
import sys

import pytest

import ftcomm
from ftcomm import errors
from ftcomm.errors import ConfigError, FtcommError
from tests.conformance.plans import ROOT, worker_environment

pytestmark = pytest.mark.process
SCRIPT = """
import logging
from ftcomm.errors import JobLostError
from ftcomm.diagnostics.exit_hook import use_exit_codes

use_exit_codes()
logging.getLogger("ftcomm").setLevel({level!r})
library = {{"__name__": "ftcomm.engine.engine", "JobLostError": JobLostError}}
exec("def raise_it(): raise JobLostError('gone')", library)
library["raise_it"]()
"""


def traceback_lines(level: str) -> tuple[int, list[str]]:
    """Exit status, and what the lines of the traceback say of where."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(level=level)],
        env=worker_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("ftcomm.errors.JobLostError: gone - ")
    return done.returncode, [line.split()[-1] for line in lines if line.startswith("  File")]


@pytest.mark.smoke
def test_a_traceback_ends_at_the_line_of_the_script() -> None:
    assert traceback_lines("INFO") == (71, ["<module>"])


FAILING = """
import sys, threading
from ftcomm.diagnostics.exit_hook import call_if_script_fails, use_exit_codes

use_exit_codes()
call_if_script_fails(lambda error: print("ends by", error, flush=True) or over.set())
over = threading.Event()
{script}
"""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("threading.Thread(target=over.wait).start(); raise ValueError(1)", "ends by 1\n"),
        ("raise KeyboardInterrupt", "ends by \n"),
        ("sys.excepthook(ValueError, ValueError(1), None)", ""),
        (
            "error = ValueError(1); sys.excepthook(ValueError, error, None); raise error",
            "ends by 1\n",
        ),
        ("t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", ""),
        ("sys.ps1 = '> '; raise ValueError(1)", ""),
    ],
    ids=["thread", "ctrl-c", "printed", "printed-first", "of-a-thread", "interactive"],
)
def test_an_uncaught_error_is_told_before_threads_are_waited_for(script: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILING.format(script=script)],
        env=worker_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == said, done.stderr


WRAPPED = """
import io, sys
from ftcomm.diagnostics.exit_hook import use_exit_codes
from ftcomm.errors import JobLostError

def wrap(inner):
    def outer(*error):  # as torch.distributed.init_process_group does
        screen, sys.stderr = sys.stderr, io.StringIO()
        try:
            inner(*error)
        finally:
            text, sys.stderr = sys.stderr.getvalue(), screen
        for line in text.splitlines():
            print("[rank0]:", line, file=sys.stderr)
    return outer

use_exit_codes()
sys.excepthook = wrap(wrap(sys.excepthook))
{script}
"""


@pytest.mark.parametrize(
    ("script", "status", "end"),
    [
        ("raise JobLostError('gone')", 71, "[rank0]: [rank0]: ftcomm.errors.JobLostError: gone - "),
        ("raise KeyError('nokey')", 1, "[rank0]: [rank0]: KeyError: 'nokey'"),
        (  # as a runner does that imitates the interpreter, such as that of coverage
            "sys.excepthook(JobLostError, JobLostError('gone'), None); print('goes on')",
            71,
            "[rank0]: [rank0]: ftcomm.errors.JobLostError: gone - ",
        ),
    ],
    ids=["of the library", "of the script", "by a runner"],
)
def test_a_hook_around_the_hook_still_prints_and_the_status_stays(
    script: str, status: int, end: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRAPPED.format(script=script)],
        env=worker_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.splitlines()[-1:]
    assert (done.returncode, [line.startswith(end) for line in last]) == (status, [True]), last
    assert done.stdout == ""


MALFORMED = (
    {"FTCOMM_LOG": "verbose"},
    {"FTCOMM_TRACKER_TIMEOUT": "x"},
    {"FTCOMM_TRACKER": "foo"},
    {"FTCOMM_ALGORITHM": "foo"},
    {"FTCOMM_VERIFY": "foo"},
    {"RANK": "1", "WORLD_SIZE": "2"},
)


@pytest.mark.parametrize("variables", MALFORMED, ids=lambda variables: next(iter(variables)))
def test_a_malformed_variable_ends_the_script_by_its_own_status(
    variables: dict[str, str],
) -> None:
    """By status 1 a launcher would start the worker again, which can never start."""
    done = subprocess.run(
        [sys.executable, "-c", "import ftcomm\nftcomm.init()"],
        env={**worker_environment(), **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stderr.splitlines()
    frames = [line.split()[-1] for line in lines if line.startswith("  File")]
    assert (done.returncode, frames) == (ConfigError.exit_code, ["<module>"])
    assert lines[-1].startswith("ftcomm.errors.ConfigError: ")


def test_a_process_that_is_numbered_but_alone_is_warned() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import ftcomm\nftcomm.init().close()"],
        env={**worker_environment(), "JOB_COMPLETION_INDEX": "3"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.startswith("ftcomm: JOB_COMPLETION_INDEX numbers this process, but no")
    assert "FTCOMM_TRACKER to host:port, or to none" in done.stderr


def test_every_error_is_a_name_of_the_package() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    named = {kind.__name__ for kind in kinds if issubclass(kind, FtcommError)}
    assert named <= set(ftcomm.__all__)


def test_with_the_log_on_debug_the_traceback_is_whole() -> None:
    assert traceback_lines("DEBUG") == (71, ["<module>", "raise_it"])


REFUSED = "import ftcomm\ncomm = ftcomm.init(tracker='none')\ncomm.broadcast([1], root='a')\n"
OPENED_TWICE = "import ftcomm\ncomm = ftcomm.init(tracker='none')\nftcomm.init(tracker='none')\n"
DEFECT = """
from ftcomm.diagnostics.exit_hook import use_exit_codes
use_exit_codes()
library = {"__name__": "ftcomm.engine.engine"}
exec("def add(): return None + 1", library)
library["add"]()
"""


@pytest.mark.parametrize(
    ("script", "error", "found"),
    [
        (REFUSED, (1, "TypeError"), ["<module>"]),
        (OPENED_TWICE, (70, "ftcomm.errors.ThreadError"), ["<module>"]),
        (DEFECT, (1, "TypeError"), ["<module>", "add"]),
    ],
    ids=["refused argument", "opened twice", "defect"],
)
def test_a_refusal_ends_at_the_script_and_a_mutant_shows_all(
    script: str, error: tuple[int, str], found: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=worker_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stderr.splitlines()
    frames = [line.split()[-1] for line in lines if line.startswith("  File")]
    assert ((done.returncode, lines[-1].partition(":")[0]), frames) == (error, found)


ENDING = """
import atexit, os, sys, threading
from ftcomm.diagnostics.exit_hook import exit_by, has_ended_well, use_exit_codes
from ftcomm.errors import JobLostError

use_exit_codes()
atexit.register(lambda: print(has_ended_well(), flush=True))
"""


def ending(script: str, *options: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *options, "-c", ENDING + script],
        env=worker_environment(),
        cwd=ROOT,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("script", "is_well"),
    [
        ("", True),
        ("sys.exit(0)", False),
        ("sys.exit()", False),
        ("try: sys.exit(3)\nexcept SystemExit: pass", True),
        ("threading.Thread(target=sys.exit, args=(1,)).start()", True),
        ("sys.exit(3)", False),
        ("threading.Thread(target=sys.exit, args=(0,)).start(); raise SystemExit(3)", False),
        ("sys.exit('a text')", False),
        ("raise SystemExit(3)", False),
        ("1 / 0", False),
        ("raise KeyboardInterrupt", False),
        ("try: sys.exit(0)\nexcept SystemExit: 1 / 0", False),
        ("if not os.fork(): sys.exit(3)\nos.wait(); sys.exit(3)", False),
    ],
)
def test_an_exit_function_learns_how_the_script_has_ended(script: str, is_well: bool) -> None:
    _, said, _ = ending(script)
    assert set(said.split()) == {str(is_well)}


def test_the_end_of_an_interactive_session_is_no_end_of_a_script() -> None:
    assert ending("", "-i")[1].strip() == "False"


def test_an_error_of_an_exit_function_has_its_status() -> None:
    status, said, errors = ending("atexit.register(lambda: exit_by(JobLostError('gone')))")
    assert (status, said) == (71, "")
    assert "JobLostError: gone" in errors


@pytest.mark.parametrize(
    ("call", "taken"),
    [
        ("send(1.0, dest=1)", "send(x, to, tag=0, *, copy=True)"),
        ("barrier(group=0)", "barrier(*, deadline=None, tag=None)"),
    ],
)
def test_an_argument_of_another_library_is_answered_by_what_the_call_takes(
    call: str, taken: str
) -> None:
    script = f"import ftcomm\nwith ftcomm.init() as comm:\n    comm.{call}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=worker_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == f"what it takes: {taken}"
