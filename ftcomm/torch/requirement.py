"""The torch that this subpackage needs, and the accelerate that its adapter does."""

import importlib
import re
from types import ModuleType
from typing import Any

OLDEST = (2, 6)  # the oldest that was tested
OLDEST_ACCELERATE = (1, 1)  # likewise
OLDEST_OF_BACKEND = (2, 13)  # likewise; with 2.6 torch's own DDP waits for ever


def require_torch() -> ModuleType:
    """Import torch, and return it; raises ImportError."""
    return _required("torch", OLDEST, "ftcomm.torch", "ftcomm with its extra `torch`")


def require_accelerate() -> Any:
    """Import accelerate, and return it; raises ImportError."""
    least = ".".join(map(str, OLDEST_ACCELERATE))
    return _required(
        "accelerate", OLDEST_ACCELERATE, "ftcomm.torch.accelerate", f"'accelerate>={least}'"
    )


def _required(name: str, oldest: tuple[int, int], user: str, what: str) -> ModuleType:
    needed = f"{user} needs {name} {oldest[0]}.{oldest[1]} or newer"
    remedy = f"install {what}"
    try:
        package = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(f"{needed}, which is not installed: {remedy}") from None
    if release_of(package.__version__) < oldest:
        raise ImportError(f"{needed}, and {package.__version__} is installed: {remedy}")
    return package


def release_of(version: str) -> tuple[int, ...]:
    """The first two numbers of a version such as ``2.13.0+cpu``."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def require_backend(torch: ModuleType) -> None:
    """See that the backend of torch.distributed can work; raises ImportError."""
    if not has_backend(torch):
        needed = ".".join(map(str, OLDEST_OF_BACKEND))
        raise ImportError(
            f"the backend ftcomm needs torch {needed} or newer, and {torch.__version__} is "
            "installed: use ftcomm.torch.DDP, which needs no backend"
        )


def has_backend(torch: ModuleType) -> bool:
    """Tell whether torch is new enough for the backend, and was built with torch.distributed."""
    is_built: bool = torch.distributed.is_available()
    return is_built and release_of(torch.__version__) >= OLDEST_OF_BACKEND
