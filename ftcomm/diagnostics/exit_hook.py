"""Exit status of a process that an error of this library ends, and what a forked child inherits.

A launcher or supervisor decides by the exit status whether a restart makes sense.  An uncaught
`FtcommError` therefore ends the process with the error's `exit_code` instead of 1; its traceback
ends at the script's own line, as that of a TypeError or ValueError about a call's arguments does,
and nothing is done to a process that catches the error.

Python waits for all threads behind the end of the main thread, and runs exit functions behind that.
So what must happen although a thread lives on is told of the error before.

Exit functions do not learn how the script has ended.  Its outermost frame tells that: it stands at
a return, or at the call that an exception has left.
"""

import contextlib
import inspect
import logging
import opcode
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

from ftcomm.errors import FtcommError

_End = Callable[[BaseException], object]
_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]

_OURS = __name__.partition(".")[0]
_ARGUMENTS = re.compile(r"Communicator\.([a-z]\w*)\(\) (?:got an unexpected|missing) ")
_RAISE = opcode.opmap["RAISE_VARARGS"]
_RETURNS = frozenset(code for name, code in opcode.opmap.items() if name.startswith("RETURN_"))
_installed = False
_outermost: list[FrameType] = []  # of the main thread, once the hook is installed
_ends: list[_End] = []
_uncaught: list[BaseException] = []  # the newest that the hook was given, if any was
_abandons: "weakref.WeakSet[Any]" = weakref.WeakSet()


def use_exit_codes() -> None:
    """Install the hook, once; whatever hook was there goes on printing."""
    global _installed  # noqa: PLW0603 - once per process
    if not _installed:
        _installed = True
        sys.excepthook = _with_exit_code(sys.excepthook)
        _outermost[:] = _outermost_frame()


def has_ended_well() -> bool:
    """True in an exit function of a script that has come to its end.

    False after an exception, where a user types what comes next, and after ``sys.exit``: a handler
    of SIGTERM may have called it in the midst of training.
    """
    if _is_interactive() or getattr(sys, "last_value", None) is not None or not _outermost:
        return False
    [frame] = _outermost
    return frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] in _RETURNS


def exit_by(error: BaseException) -> NoReturn:
    """End the process in an exit function as `error` would have ended the script before.

    Python prints an error of an exit function, and keeps the status.
    """
    status = error.exit_code if isinstance(error, FtcommError) else 1
    with contextlib.suppress(SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or not there
            stream.flush()
    os._exit(status)


def _outermost_frame() -> list[FrameType]:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - documented
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return [] if frame is None else [frame]


def call_if_script_fails(end: _End) -> _End:
    """Call `end` with the error that ends the script, before other threads are waited for."""
    _ends.append(end)
    return end


def _note_uncaught(error: BaseException) -> None:
    """The script may end by `error`; not where a user types what comes next."""
    if threading.current_thread() is not threading.main_thread() or _is_interactive():
        return
    if not _uncaught:
        # Nothing public comes before threads are waited for. Pools of threads use this too.
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            with contextlib.suppress(RuntimeError):  # all is over already
                register(_call_ends)
    _uncaught[:] = [error]


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive or sys.flags.inspect)


def _call_ends() -> None:
    [error] = _uncaught
    if getattr(sys, "last_value", None) is error:  # else somebody has called the hook to print it
        for end in _ends:
            end(error)


def _with_exit_code(previous: _Hook) -> _Hook:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _note_uncaught(error)
        _tell_parameters(error)
        ours = isinstance(error, FtcommError)
        if not logging.getLogger("ftcomm").isEnabledFor(logging.DEBUG) and (
            ours or _refuses_arguments(error, trace)
        ):
            error.__traceback__ = trace = to_the_last_line_of_the_script(trace)
        previous(kind, error, trace)
        if isinstance(error, FtcommError):
            _exit_behind_hooks(error.exit_code)

    return hook


def _exit_behind_hooks(status: int) -> None:
    """End the process with `status` as the hook that was called returns.

    That may be another library's around ours, which prints after ours has returned: torch's does.
    """
    code = getattr(sys.excepthook, "__code__", None)
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - nothing else tells who calls
    outermost = frame
    while frame is not None:
        if frame.f_code is code:
            outermost = frame
        frame = frame.f_back

    def end(frame: FrameType, event: str, _: object) -> None:
        if frame is outermost and event == "return":
            sys.setprofile(None)
            raise SystemExit(status)

    sys.setprofile(end)


def _tell_parameters(error: BaseException) -> None:
    """Say what a call takes: Python says only which argument was wrong, as in ``send(dest=1)``."""
    found = _ARGUMENTS.match(str(error)) if type(error) is TypeError else None
    call = found and getattr(sys.modules[_OURS].Communicator, found[1], None)
    if callable(call):
        empty = inspect.Parameter.empty
        _, *taken = inspect.signature(call).parameters.values()
        names = inspect.Signature([one.replace(annotation=empty) for one in taken])
        error.add_note(f"what it takes: {call.__name__}{names}")


def _refuses_arguments(error: BaseException, trace: TracebackType | None) -> bool:
    """True of a TypeError, ValueError or AttributeError that a `raise` of this library's makes.

    It is about what the script passed or named. One that an expression makes is a defect here, or
    in a function of the user's, and keeps its whole traceback.
    """
    if trace is None or not isinstance(error, TypeError | ValueError | AttributeError):
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return _package(trace) == _OURS and trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


def to_the_last_line_of_the_script(trace: TracebackType | None) -> TracebackType | None:
    """`trace` without this library's frames at its end, and `contextlib`'s, which lead to them."""
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    while frames and _package(frames[-1]) in {_OURS, "contextlib"}:
        frames.pop()
    for frame in reversed(frames):
        trace = TracebackType(trace, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return trace


def _package(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


def abandon_in_children(owner: Any) -> None:
    """Call ``owner.abandon()`` in every forked child while `owner` is alive."""
    _abandons.add(owner)


def _abandon_all() -> None:
    for owner in list(_abandons):
        owner.abandon()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_abandon_all)
