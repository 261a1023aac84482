"""Arguments of `Tracker` and `launch`: checked before anything is started."""

import contextlib
import datetime as dt
import difflib
import inspect
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from ftcomm.config.environment import job_settings
from ftcomm.config.job_settings import SETTINGS
from ftcomm.config.plurals import counted
from ftcomm.errors import ConfigError
from ftcomm.protocol.field_types import MAX_WORLD_SIZE
from ftcomm_tracker.launcher.restart_policy import RestartLimits

MAX_PORT = 65535  # of TCP
MAX_SECONDS = 30 * 86400.0  # as on the command line
_VARIABLE = re.compile(r"\bFTCOMM_([A-Z][A-Z_]*)\b")
_OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")


def checked_workers(workers: object) -> int:
    """Return a number of workers.

    Raises:
        ConfigError: it is none.
    """
    workers = _plain(workers)
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise ConfigError(f"workers is {workers!r}, must be a whole number")
    if not 1 <= workers <= MAX_WORLD_SIZE:
        raise ConfigError(f"workers is {workers}: a job has 1 to {MAX_WORLD_SIZE} workers")
    return workers


def checked_timeout(timeout: object) -> float | None:
    """Return `timeout` in seconds, as far as a lock can wait; None for no limit.

    Raises:
        ConfigError: it is neither a number of seconds nor a timedelta, below 0 or not finite.
    """
    if timeout is None:
        return None
    if isinstance(timeout, dt.timedelta):
        timeout = timeout.total_seconds()
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise ConfigError(
            f"timeout is {timeout!r}, must be a number of seconds or a datetime.timedelta"
        )
    try:
        seconds = float(timeout)
    except OverflowError:  # an int that no float is near
        seconds = math.inf
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"timeout is {seconds}, must be 0 or more, finite; None is no limit")
    return min(seconds, threading.TIMEOUT_MAX)


def checked_settings(given: object) -> dict[str, Any]:
    """Return job settings by name, with their values as the job has them.

    Args:
        given: values, or texts such as ``"512MiB"`` as the command line takes them.

    Raises:
        ConfigError: a name is unknown, or a value malformed or out of range.
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping) or not _are_texts(given):
        raise ConfigError(f"settings is {given!r}, must have values by name")
    settings = {name: _value(name, value) for name, value in given.items()}
    with naming_arguments():
        job_settings(settings)
    return settings


def checked_restarts(max_restarts: object, window_s: object) -> RestartLimits:
    """Return limits on the restarts of one worker.

    Raises:
        ConfigError: one is malformed or out of range.
    """
    max_restarts = _plain(max_restarts)
    if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or max_restarts < 0:
        raise ConfigError(f"max_restarts is {max_restarts!r}, must be a whole number from 0 on")
    if not isinstance(window_s, int | float) or not 0 < window_s <= MAX_SECONDS:
        raise ConfigError(
            f"restart_window is {window_s!r}, must be seconds, above 0 and up to {MAX_SECONDS:g}"
        )
    return RestartLimits(max_restarts, float(window_s))


def checked_grace(given: object) -> float:
    """Return the seconds that workers have to end.

    Raises:
        ConfigError: they are malformed or out of range.
    """
    if not isinstance(given, int | float) or not 0 <= given <= MAX_SECONDS:
        raise ConfigError(f"term_grace is {given!r}, must be seconds, from 0 to {MAX_SECONDS:.0f}")
    return float(given)


def checked_path(name: str, given: object) -> Path | None:
    """Return the path of a file or directory; None for none.

    Raises:
        ConfigError: it is neither a text nor a path.
    """
    if given is None:
        return None
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else given
    if not isinstance(text, str):  # a PathLike may be of bytes
        raise ConfigError(f"{name} is {given!r}, must be a text or a path")
    return Path(text)


def checked_host(given: object) -> str | None:
    """Return an address to listen on; None for the default.

    Raises:
        ConfigError: it is no text.
    """
    if given is None or isinstance(given, str):
        return given
    raise ConfigError(f"host is {given!r}, must be a name or an address of this machine")


def checked_port(given: object) -> int | None:
    """Return the number of a port; None for a free one.

    Raises:
        ConfigError: it is none.
    """
    port = _plain(given)
    if isinstance(port, bool) or not (port is None or isinstance(port, int)):
        raise ConfigError(f"port is {given!r}, must be a whole number; 0 takes a free one")
    if port is not None and not 0 <= port <= MAX_PORT:
        raise ConfigError(f"port is {port}, must be from 0 to {MAX_PORT}; 0 takes a free one")
    return port


def checked_variables(given: object) -> dict[str, str]:
    """Return variables of the environment.

    Raises:
        ConfigError: they are not texts by name, or a system call does not take one.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not _are_texts([*given, *given.values()]):
        raise ConfigError(f"environment is {given!r}, must have texts by name")
    for name, value in given.items():
        if not name or "=" in name or not _can_be_passed(name):
            raise ConfigError(f"environment has {name!r}, which is no name of a variable")
        if not _can_be_passed(value):  # which may be a secret
            raise ConfigError(f"environment has {name} with a character that no variable takes")
    return dict(given)


def checked_call(function: object, args: object, kwargs: object) -> None:
    """Refuse what is no call.

    Raises:
        ConfigError: the function or its arguments are of another kind.
        TypeError: the function does not take these arguments.
    """
    if not callable(function):
        raise ConfigError(f"the function is {function!r}: pass the function itself, not a result")
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise ConfigError(f"args is {args!r}, must be a tuple or a list")
    if kwargs is not None and not (isinstance(kwargs, Mapping) and _are_texts(kwargs)):
        raise ConfigError(f"kwargs is {kwargs!r}, must have values by name")
    _check_binding(function, args, kwargs or {})


def _check_binding(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise now what each worker would raise; a function that shows no signature may take all."""
    if getattr(function, "__signature__", None) is not None:  # it may tell what it wraps
        return
    try:
        # What a decorator wraps may take other arguments than the decorated function.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        raise TypeError(
            f"launch would call {name}{signature} with {_shown(args, kwargs)}: {error}"
        ) from None


def _shown(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The number of positional arguments of a call, and the names of the others."""
    shown = counted(len(args), "positional argument")
    return f"{shown} and {', '.join(kwargs)}" if kwargs else shown


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _can_be_passed(text: str) -> bool:
    """True of a text that a system call takes."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _plain(value: Any) -> Any:
    """A whole number of numpy's as Python's own; anything else as it is."""
    return value if isinstance(value, bool) or not isinstance(value, Integral) else int(value)


def _value(name: str, value: Any) -> Any:
    setting = SETTINGS.get(name)
    if setting is None:
        near = difflib.get_close_matches(name, SETTINGS, n=1)
        hint = f"did you mean {near[0]}?" if near else "`ftcomm-tracker help running` has them"
        raise ConfigError(f"no such job setting: {name}", remedy=hint)
    if not isinstance(value, str):
        return _plain(value)
    with naming_arguments():
        return setting.kind.read(name, value)


@contextlib.contextmanager
def naming_arguments() -> Iterator[None]:
    """A refusal in the block names arguments and settings, not options and variables."""
    try:
        yield
    except ConfigError as error:
        remedy = as_arguments(error.remedy)
        raise type(error)(as_arguments(error.cause), remedy=remedy) from None


def as_arguments(text: str) -> str:
    """A text in which options and variables have the names of arguments and settings."""
    text = _VARIABLE.sub(lambda found: found[1].lower(), text)
    return _OPTION.sub(lambda found: found[1].replace("-", "_"), text)
