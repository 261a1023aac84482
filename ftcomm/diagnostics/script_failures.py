"""Failures of a script: which errors are its own, and the line that raised them.

The same error of a script ends every process that is started again; an error of the environment,
such as a full disk, may not come again.
"""

import re

from ftcomm import errors

MAX_BEHIND = 32  # errors that are looked at behind one
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
# Errors of the environment, which another process may not meet: they count as deaths.
OF_THE_ENVIRONMENT = frozenset(
    kind.__name__
    for kind in (
        BlockingIOError,
        BrokenPipeError,
        ConnectionAbortedError,
        ConnectionError,
        ConnectionRefusedError,
        ConnectionResetError,
        InterruptedError,
        KeyboardInterrupt,
        MemoryError,
        TimeoutError,
        errors.AuthenticationError,
        errors.EvictedError,
        errors.ProtocolError,
        errors.ThreadLimitError,
        errors.TrackerLostError,
    )
) | {"gaierror", "herror", "timeout", "HTTPError", "URLError", "OutOfMemoryError"}


def without_addresses(text: str) -> str:
    """`text` as it is in each process: without addresses of memory."""
    return _ADDRESS.sub("0x", text)


def may_pass(kind: type[BaseException]) -> bool:
    """True of an error that another process may not meet, although all ranks meet it now."""
    names = {base.__name__ for base in kind.__mro__}
    return issubclass(kind, OSError) or not names.isdisjoint(OF_THE_ENVIRONMENT)


def _behind(error: BaseException) -> list[BaseException]:
    """`error`, its causes, and the members of groups among them: a library may wrap the first."""
    found = [error]
    for each in found:  # grows meanwhile
        more = [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            more += each.exceptions
        found += [one for one in more if one is not None and all(one is not two for two in found)]
        if len(found) >= MAX_BEHIND:
            break
    return found


def failure_site(error: BaseException) -> str:
    """File and line of the script that raised `error`; empty where that is no error of its own."""
    if not isinstance(error, Exception) or any(may_pass(type(each)) for each in _behind(error)):
        return ""
    site, trace = "", error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] != errors.__name__.partition(".")[0]:
            file = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
            site = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return site
