"""For tests of programs that use ftcomm: a group of threads, and what every call must return.

`local_group` is found on first use, as the names of `ftcomm` that start a job.
"""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["local_group"]

if TYPE_CHECKING:
    from ftcomm_tracker.embedding.local_group import local_group
else:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'ftcomm.testing' has no attribute {name!r}")
        return getattr(importlib.import_module("ftcomm_tracker.embedding.local_group"), name)
