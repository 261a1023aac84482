"""Errors of scripts, read from what real interpreters print."""

import subprocess
import sys
from pathlib import Path

import pytest

from ftcomm_tracker.launcher.processes.script_errors import (
    EqualTracebacks,
    ScriptError,
    TracebackReader,
)

BROKEN = "import missing_module_of_this_test\n"
DEEP = """
def load(step):
    raise ValueError(f"bad batch of {object()}")

for step in range(3):
    print("step", step)
    if step == 2:
        load(step)
"""
CHAINED = """
import sys, warnings
try:
    {}["weights"]
except KeyError as error:
    raise RuntimeError("no weights") from error
"""
GROUP = """
def load(step):
    raise ValueError(f"bad row {step}")

found = []
for step in range(4):
    try:
        load(step)
    except ValueError as error:
        found.append(error)
inner = ExceptionGroup("workers", found[:1])
raise ExceptionGroup("unhandled errors in a TaskGroup", [inner, *found[1:]])
"""
GROUP_TEXT = (
    "ExceptionGroup: unhandled errors in a TaskGroup (4 sub-exceptions)"
    " [ExceptionGroup: workers (1 sub-exception); ValueError: bad row 0; ValueError: bad row 1;"
    " ValueError: bad row 2; ValueError: bad row 3]"
)
CAUSED_BY_A_GROUP = """
try:
    raise ExceptionGroup("many", [KeyError("weights")])
except ExceptionGroup as error:
    raise RuntimeError("no weights") from error
"""
WRAPPED = """
def read():
    raise {}
try:
    read()
except Exception as error:
    raise RuntimeError("cannot read shard 7"){}
"""
REFUSED, MISSING = "ConnectionRefusedError(111, 'refused')", "FileNotFoundError(2, 'missing')"
LOGGED = """
import sys, traceback
try:
    raise OSError("logged")
except OSError:
    traceback.print_exc()
for line in range(30):
    print("line", line, file=sys.stderr)
sys.exit(1)
"""


def error_output(folder: Path, script: str) -> tuple[int, bytes]:
    path = folder / "train.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, timeout=60, check=False)
    return done.returncode, done.stderr


def reader_of(output: bytes) -> TracebackReader:
    reader = TracebackReader()
    for line in output.splitlines(keepends=True):
        reader.read(line)
    return reader


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "text", "line"),
    [
        (BROKEN, "ModuleNotFoundError: No module named 'missing_module_of_this_test'", 1),
        (DEEP, "ValueError: bad batch of <object object at 0x>", 3),
        (CHAINED, "RuntimeError: no weights", 6),
        (GROUP, GROUP_TEXT, 12),
        (CAUSED_BY_A_GROUP, "RuntimeError: no weights", 5),
        ("raise ExceptionGroup('busy', [TimeoutError('the store')])", None, 0),
        ("x = 1\nif x\n    pass\n", "SyntaxError: expected ':'", 2),
        ("raise TimeoutError('the store is busy')", None, 0),
        (WRAPPED.format(REFUSED, " from error"), None, 0),
        (WRAPPED.format(REFUSED, ""), None, 0),
        (WRAPPED.format(f"ExceptionGroup('shards', [{REFUSED}])", ""), None, 0),
        (WRAPPED.format(REFUSED, " from None"), "RuntimeError: cannot read shard 7", 7),
        ("raise SystemExit(1)", None, 0),
        (LOGGED, None, 0),
        ("import os; os.kill(os.getpid(), 9)", None, 0),
    ],
)
def test_the_error_of_a_script_is_known_by_text_and_line(
    script: str, text: str | None, line: int, tmp_path: Path
) -> None:
    wanted = None if text is None else ScriptError(text, f"{tmp_path / 'train.py'}:{line}")
    status, output = error_output(tmp_path, script)
    assert reader_of(output).error_of(status) == wanted
    at_once = TracebackReader()
    at_once.read(output or b"\n")
    assert at_once.error_of(status) == wanted


@pytest.mark.process
@pytest.mark.parametrize(
    ("error", "by", "passes"),
    [
        (MISSING, " from error", True),
        (f"ExceptionGroup('shards', [{MISSING}])", "", True),
        ("KeyError('shard')", "", False),
        (MISSING, " from None", False),
    ],
)
def test_an_error_made_of_one_that_may_pass_may_pass(
    error: str, by: str, passes: bool, tmp_path: Path
) -> None:
    status, output = error_output(tmp_path, WRAPPED.format(error, by))
    found = reader_of(output).error_of(status)
    assert found is not None
    assert (found.text, found.may_pass) == ("RuntimeError: cannot read shard 7", passes)


@pytest.mark.process
def test_a_script_that_does_not_exist_is_an_error_of_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "/nonexistent/train.py"], capture_output=True, timeout=60, check=False
    )
    error = reader_of(done.stderr).error_of(done.returncode)
    assert error is not None
    assert "can't open file '/nonexistent/train.py'" in str(error)


@pytest.mark.process
@pytest.mark.parametrize("script", [BROKEN, DEEP, CHAINED, "if x\n", GROUP])
def test_a_traceback_at_the_end_is_held_and_shown_once_for_all(script: str, tmp_path: Path) -> None:
    outputs = [error_output(tmp_path, script)[1] for _ in range(2)]
    tracebacks = EqualTracebacks()
    for worker, output in zip("012", [outputs[0], *outputs], strict=True):
        reader = TracebackReader()
        assert reader.read(b"before\n" + output) == b"before\n"
        assert (tracebacks.add(worker, reader), tracebacks.take(4)) == (b"", [])
    [(shown, workers)] = tracebacks.take()
    assert (shown, workers) == (outputs[0], ["0", "1", "2"])
    assert tracebacks.take() == []


HEAD = b'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n'


def test_a_traceback_behind_the_rank_that_torch_prints_is_read() -> None:
    plain = HEAD + b"KeyError: 'nokey'\n"
    torchs = b"".join(b"[rank1]: " + line for line in plain.splitlines(keepends=True))
    found = reader_of(torchs).error_of(1)
    assert (found, found) == (
        ScriptError("KeyError: 'nokey'", "a.py:1"),
        reader_of(plain).error_of(1),
    )


ONE, TWO = HEAD + b"ValueError: one\n", HEAD + b"ValueError: two\n"


def added(tracebacks: EqualTracebacks, worker: str, output: bytes) -> bytes:
    return tracebacks.add(worker, reader_of(output))


def test_tracebacks_that_differ_are_shown_apart() -> None:
    tracebacks = EqualTracebacks()
    assert [added(tracebacks, worker, text) for worker, text in (("0", ONE), ("1", TWO))] == [
        b""
    ] * 2
    assert tracebacks.take() == [(ONE, ["0"]), (TWO, ["1"])]


def test_a_traceback_that_ended_the_process_before_too_is_not_shown_again() -> None:
    tracebacks = EqualTracebacks()
    found = []
    for text in (ONE, ONE, TWO, ONE):
        added(tracebacks, "0", text)
        found.append(tracebacks.take())
    assert found == [[(ONE, ["0"])], [], [(TWO, ["0"])], [(ONE, ["0"])]]


def test_lines_behind_equal_tracebacks_are_shown_where_they_differ() -> None:
    tracebacks = EqualTracebacks()
    ends = [ONE + b"warning\n", ONE + b"warning\n", ONE + b"another\n"]
    shown = [added(tracebacks, worker, text) for worker, text in zip("012", ends, strict=True)]
    assert shown == [b"", b"", b"another\n"]
    assert tracebacks.take() == [(ONE + b"warning\n", ["0", "1", "2"])]
    assert added(tracebacks, "0", ONE + b"another\n") == b"another\n"


def test_what_is_no_traceback_is_shown_at_the_end() -> None:
    tracebacks = EqualTracebacks()
    assert added(tracebacks, "0", b"line\n") == b""  # it was shown as it came
    assert (added(tracebacks, "0", HEAD), tracebacks.take()) == (HEAD, [])


def test_a_traceback_is_held_until_another_one_or_too_much_follows() -> None:
    reader = TracebackReader()
    assert [reader.read(ONE), reader.read(TWO), reader.holds] == [b"", ONE, True]
    more = [b"line %d\n" % number for number in range(30)]
    shown = b"".join(reader.read(line) for line in more)
    assert (shown, reader.holds) == (TWO + b"".join(more), False)


def test_a_traceback_that_was_released_is_still_the_newest() -> None:
    """Its process takes its time to end."""
    reader = TracebackReader()
    assert (reader.read(ONE), reader.release(), reader.read(b"line\n")) == (b"", ONE, b"line\n")
    assert reader.error_of(1) == ScriptError("ValueError: one", "a.py:1")


def test_memory_is_bounded_by_a_traceback_without_an_end() -> None:
    reader = TracebackReader()
    for number in range(100_000):
        reader.read(HEAD if number == 0 else b"    frame\n")
    assert len(reader.lines) < 500
    reader.read(b"ValueError: one\n")
    assert reader.error_of(1) is None
