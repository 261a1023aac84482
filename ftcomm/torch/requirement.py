"""The torch that this subpackage needs, and the accelerate that its adapter does."""

from types import ModuleType
from typing import Any

from ftcomm.requirement import release_of, require

OLDEST = (2, 6)  # the oldest that was tested
OLDEST_ACCELERATE = (1, 1)  # likewise
OLDEST_OF_BACKEND = (2, 13)  # likewise; with 2.6 torch's own DDP waits for ever


def require_torch() -> ModuleType:
    """Import torch, and return it; raises ImportError."""
    return require("torch", OLDEST, "ftcomm.torch", "ftcomm with its extra `torch`")


def require_accelerate() -> Any:
    """Import accelerate, and return it; raises ImportError."""
    least = ".".join(map(str, OLDEST_ACCELERATE))
    return require(
        "accelerate", OLDEST_ACCELERATE, "ftcomm.torch.accelerate", f"'accelerate>={least}'"
    )


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
