"""What a script that an error of the library ends shows and returns."""

import subprocess
import sys

from tests.conformance.plans import ROOT, worker_environment

SCRIPT = """
import logging
from ftcomm.errors import JobLostError
from ftcomm.exits import use_exit_codes

use_exit_codes()
logging.getLogger("ftcomm").setLevel({level!r})
library = {{"__name__": "ftcomm.engine", "JobLostError": JobLostError}}
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


def test_a_traceback_ends_at_the_line_of_the_script() -> None:
    assert traceback_lines("INFO") == (71, ["<module>"])


def test_with_the_log_on_debug_the_traceback_is_whole() -> None:
    assert traceback_lines("DEBUG") == (71, ["<module>", "raise_it"])
