"""The line of the script that an error is told with, and errors that are not its own."""

import sys
from collections.abc import Callable
from typing import NoReturn

import pytest

import ftcomm
from ftcomm.diagnostics.script_failures import failure_site, without_addresses
from ftcomm.errors import TrackerLostError


class AwayError(ConnectionError):
    """An error of the user's network."""


def caught(call: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as found:  # noqa: PT011 - all kinds are tried
        call()
    return found.value


def raise_it(error: BaseException) -> NoReturn:
    raise error


def test_an_error_has_the_line_of_the_script_that_made_the_call() -> None:
    with ftcomm.init("none") as comm:
        line = sys._getframe().f_lineno + 1
        error = caught(lambda: comm.allreduce("abc"))
        assert failure_site(error) == f"test_script_failures.py:{line}"


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "data"),
        AwayError(),
        MemoryError(),
        KeyboardInterrupt(),
        SystemExit(0),
        TrackerLostError("gone"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_another_process_may_not_meet_has_none(error: BaseException) -> None:
    assert failure_site(caught(lambda: raise_it(error))) == ""


def wrapped(*, by: str) -> BaseException:
    """An error of the script that a library has made of one of the environment."""
    away = ConnectionResetError(104, "reset")
    if by == "group":
        return ExceptionGroup("in a nursery", [ValueError("its own"), away])
    error = RuntimeError("cannot read shard 7")
    if by == "cause":
        error.__cause__ = away
    else:
        error.__context__ = away
    return error


@pytest.mark.parametrize("by", ["cause", "context", "group"])
def test_an_error_that_comes_of_such_a_one_has_none(by: str) -> None:
    error = wrapped(by=by)
    context = error.__context__
    found = caught(lambda: raise_it(error))
    found.__context__ = context
    assert failure_site(found) == ""


def test_errors_that_refer_to_each_other_are_looked_at_once() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__cause__ = other, one
    assert failure_site(caught(lambda: raise_it(one))).startswith("test_script_failures.py:")


def test_addresses_are_the_same_in_each_process() -> None:
    assert without_addresses("<object at 0x7f12ab>") == "<object at 0x>"
