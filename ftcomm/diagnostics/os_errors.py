"""Explanations of why a connection or a file could not be used."""

import errno

import trio

_TOO_MANY = {
    errno.EMFILE: "this process has as many files and sockets open as it may: raise `ulimit -n`",
    errno.ENFILE: "this machine has as many files and sockets open as it may: raise fs.file-max",
}


def describe(error: BaseException) -> str:
    """The error's own words; for what has none, or none that help, what happened."""
    if isinstance(error, OSError) and error.errno in _TOO_MANY:
        return _TOO_MANY[error.errno]
    if isinstance(error, trio.TooSlowError) and not str(error):
        return "no answer came in time"
    return str(error) or type(error).__name__
