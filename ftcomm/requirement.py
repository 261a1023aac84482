"""The framework that an adapter needs, or one sentence that says which and how to install it."""

import importlib
import re
from types import ModuleType


def require(name: str, oldest: tuple[int, int], user: str, what: str) -> ModuleType:
    """Import a framework, and return it.

    Args:
        name: the module.
        oldest: the first two numbers of the oldest release that was tested.
        user: who needs it, such as ``ftcomm.torch``.
        what: what to install where it is missing or too old.

    Raises:
        ImportError: it is not installed, or older.
    """
    needed = f"{user} needs {name} {oldest[0]}.{oldest[1]} or newer"
    remedy = f"install {what}"
    try:
        framework = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(f"{needed}, which is not installed: {remedy}") from None
    if release_of(framework.__version__) < oldest:
        raise ImportError(f"{needed}, and {framework.__version__} is installed: {remedy}")
    return framework


def release_of(version: str) -> tuple[int, ...]:
    """The first two numbers of a version such as ``2.13.0+cpu``."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
