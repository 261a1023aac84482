"""The only place that pickles: between `launch` and the processes that it has started itself.

What is read here was written by the caller of `launch` or by one of its workers, into a folder that
their user alone can enter.  Nothing of a connection comes here: the wire is never unpickled.

`cloudpickle` sends functions and classes of a notebook or a script by their content, so workers
never import the script.  Without it, what workers can import is sent by its name.
"""

import contextlib
import functools
import importlib.util
import io
import linecache
import marshal
import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

from ftcomm.config.extras import pip_install
from ftcomm.errors import ConfigError
from ftcomm.requests.call_site import cell_name

_ELSE = ", or define it in a module that workers can import"
_loading: list[bool] = []
_registering = threading.Lock()  # modules are registered for the whole process


def dump_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bytes:
    """The bytes of a call, for the workers.

    Raises:
        ConfigError: it cannot be sent.
    """
    name, cloudpickle = name_of(function), _cloudpickle()
    if cloudpickle is None and module_of(function) == "__main__":
        raise ConfigError(
            f"{name} is defined in the notebook or the script itself, which workers cannot import",
            remedy=pip_install("notebook") + _ELSE,
        )
    try:
        with _by_content(module_of(function), cloudpickle):
            return dump((function, tuple(args), dict(kwargs)))
    except Exception as error:  # whatever the user's objects raise
        remedy = "open files, sockets and communicators in the function, and pass plain data"
        raise ConfigError(
            f"{name} and its arguments cannot be sent to the workers: {error}",
            remedy=pip_install("notebook") + _ELSE if cloudpickle is None else remedy,
        ) from error


def load_call(data: bytes) -> Callable[[], Any]:
    """Read a call; what it needs is imported now."""
    _loading.append(True)
    try:
        function, args, kwargs = load(data)
    finally:
        _loading.pop()
    return functools.partial(function, *args, **kwargs)


def is_loading() -> bool:
    """True while the modules of a call are imported in a worker."""
    return bool(_loading)


def dump(value: Any) -> bytes:
    """The bytes of a value."""
    cloudpickle = _cloudpickle()
    if cloudpickle is None:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    table = ChainMap({CodeType: _reduced_code}, cloudpickle.Pickler.dispatch_table)
    buffer = io.BytesIO()
    pickler = type("_Pickler", (cloudpickle.Pickler,), {"dispatch_table": table})
    pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def load(data: bytes) -> Any:
    """The value that `dump` has written in a process of the same launch."""
    return pickle.loads(data)  # noqa: S301 - see the module's docstring


def module_of(function: Callable[..., Any]) -> str:
    """Name of the module in which a function, or what a partial calls, is defined."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__module__", None) or type(function).__module__)


def name_of(function: Callable[..., Any]) -> str:
    """Name of a function for people."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _cloudpickle() -> Any:
    """The module, None where it is not installed."""
    if importlib.util.find_spec("cloudpickle") is None:
        return None
    return importlib.import_module("cloudpickle")


def _reduced_code(code: CodeType) -> tuple[Any, ...]:
    """Code with the name of its file, which cloudpickle leaves out: tracebacks show its lines."""
    return marshal.loads, (marshal.dumps(_named_code(code)),)


def _named_code(code: CodeType) -> CodeType:
    """The same with the cell of a notebook instead of its file, which workers cannot name."""
    file, name = code.co_filename, cell_name(code.co_filename)
    if not name:
        return code
    linecache.cache[name] = linecache.cache[file]  # for tracebacks of workers, shown here
    inner = (_named_code(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=name, co_consts=tuple(inner))


@contextlib.contextmanager
def _by_content(name: str, cloudpickle: Any) -> Iterator[None]:
    """Send what a module defines by content if workers cannot import it, as under pytest."""
    module = sys.modules.get(name)
    if cloudpickle is None or module is None or name == "__main__" or _can_be_imported(name):
        yield
        return
    with _registering:
        if name in cloudpickle.list_registry_pickle_by_value():  # by the user, who keeps it so
            yield
            return
        cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(module)


def _can_be_imported(name: str) -> bool:
    """True if a process with this one's import path finds the module."""
    path = None
    for end, letter in enumerate(f"{name}."):
        if letter == ".":
            spec = _found(name[:end], path)
            if spec is None:
                return False
            path = spec.submodule_search_locations
    return True


def _found(name: str, path: Sequence[str] | None) -> Any:
    finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for finder in finders if (spec := finder.find_spec(name, path))), None)
