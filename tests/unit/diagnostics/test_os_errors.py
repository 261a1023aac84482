"""Causes in words: an error without words of its own, and those whose words do not help."""

import errno

import pytest
import trio

from ftcomm.diagnostics.os_errors import describe


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (trio.TooSlowError(), "no answer came in time"),
        (trio.TooSlowError("nothing came for 5 s"), "nothing came for 5 s"),
        (OSError(errno.ECONNREFUSED, "Connection refused"), "[Errno 111] Connection refused"),
        (EOFError(), "EOFError"),
        (
            OSError(errno.EMFILE, "Too many open files"),
            "this process has as many files and sockets open as it may: raise `ulimit -n`",
        ),
        (
            OSError(errno.ENFILE, "Too many open files in system"),
            "this machine has as many files and sockets open as it may: raise fs.file-max",
        ),
    ],
)
def test_an_error_is_told_in_words_that_help(error: Exception, words: str) -> None:
    assert describe(error) == words
