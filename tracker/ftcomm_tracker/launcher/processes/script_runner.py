"""A script in a forked process, run as ``python script.py`` would run it.

The interpreter that runs this has read another command line.  What depends on that line is set
here: `sys.argv`, `sys.path`, the module `__main__`, and the traceback of an uncaught error, which
begins at the script's own frame.
"""

import builtins
import importlib
import os
import pkgutil
import runpy
import sys
from importlib.machinery import BuiltinImporter, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

from ftcomm_tracker.launcher.processes.python_command import CODE, FILE, PythonCommand

NO_SUCH_FILE = 2  # exit status of the interpreter


def set_import_path(command: PythonCommand) -> None:
    """Put at the head of `sys.path` what the interpreter puts there for `command`."""
    if sys.flags.safe_path:
        return
    if command.kind == CODE:
        first = ""
    elif command.kind != FILE:
        first = str(Path.cwd())
    elif is_package(command.target):
        first = _absolute(command.target)
    else:
        first = os.path.dirname(os.path.realpath(command.target))  # noqa: PTH120 - as Python does
    sys.path.insert(0, first)


def is_package(path: str) -> bool:
    """True of a folder or an archive that holds a ``__main__`` module."""
    return pkgutil.get_importer(path) is not None


def run_script(command: PythonCommand) -> None:
    """Run it in a new module `__main__`; an uncaught error is printed and goes on."""
    importlib.invalidate_caches()
    sys.orig_argv = list(command.words)
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __loader__=BuiltinImporter)
    sys.modules["__main__"] = main
    try:
        _run_in(main, command)
    except SystemExit:
        raise
    except BaseException as error:
        _print_from_the_script_on(error)
        raise  # the interpreter ends by it, without a word


def _run_in(main: ModuleType, command: PythonCommand) -> None:
    if command.kind == FILE and not is_package(command.target):
        _run_file(main, command)
    elif command.kind == CODE:
        sys.argv = ["-c", *command.arguments]
        exec(compile(command.target, "<string>", "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the user's command
    elif command.kind == FILE:
        sys.argv = [command.target, *command.arguments]
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]  # noqa: SLF001 - as the interpreter does
    else:
        sys.argv = ["-m", *command.arguments]
        runpy._run_module_as_main(command.target)  # type: ignore[attr-defined]  # noqa: SLF001 - as the interpreter does


def _run_file(main: ModuleType, command: PythonCommand) -> None:
    path = _absolute(command.target)
    sys.argv = [command.target, *command.arguments]
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - the text of its error is the interpreter's
            source = file.read()
    except OSError as error:
        text = f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}"
        sys.stderr.write(f"{text}\n")
        raise SystemExit(NO_SUCH_FILE) from None
    main.__dict__.update(
        __file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path)
    )
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the user's script


def _absolute(path: str) -> str:
    """Make a path absolute as the interpreter does, without other changes to it."""
    return path if path.startswith("/") else f"{Path.cwd()}/{path}"


def _print_from_the_script_on(error: BaseException) -> None:
    """Hand the error to the script's hook as the interpreter would, and silence the interpreter."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    hook = sys.excepthook
    sys.excepthook = _say_nothing
    hook(type(error), error, trace)


def _say_nothing(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    del kind, error, trace
