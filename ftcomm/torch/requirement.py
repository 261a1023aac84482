"""The torch that this subpackage needs."""

import importlib
import re
from types import ModuleType

OLDEST = (2, 6)  # the first in which a process group may be a class of Python


def require_torch() -> ModuleType:
    """Import torch, and return it.

    Raises:
        ImportError: it is missing, or too old.
    """
    needed = f"ftcomm.torch needs torch {OLDEST[0]}.{OLDEST[1]} or newer"
    remedy = "pip install 'ftcomm[torch]'"
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"{needed}, which is not installed: {remedy}") from None
    if release_of(torch.__version__) < OLDEST:
        raise ImportError(f"{needed}, and {torch.__version__} is installed: {remedy}")
    return torch


def release_of(version: str) -> tuple[int, ...]:
    """The first two numbers of a version such as ``2.13.0+cpu``."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
