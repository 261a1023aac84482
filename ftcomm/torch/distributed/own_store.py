"""The store of one process alone, where torch.distributed wants one that all share.

Groups of ftcomm need no store.  Those of other backends meet by it, and would wait for half an hour
for what no other rank writes here.
"""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

import ftcomm


class OwnStore(dist.Store):
    """Keeps what this process writes, and refuses to wait for what others would write."""

    def __init__(self) -> None:
        super().__init__()
        self._store = dist.HashStore()

    def set(self, key: str, value: Any) -> None:
        """Write a value."""
        self._store.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """Count by `amount`, from zero."""
        return int(self._store.add(key, amount))

    def check(self, keys: Sequence[str]) -> bool:
        """Tell whether all `keys` are there."""
        return bool(self._store.check(list(keys)))

    def get(self, key: str) -> bytes:
        """Read a value.

        Raises:
            ConfigError: it is not there.
        """
        self.wait([key])
        return bytes(self._store.get(key))

    def wait(self, keys: Sequence[str], *_: Any) -> None:
        """See that all `keys` are there.

        Raises:
            ConfigError: one is not, and never will be.
        """
        if not self.check(keys):
            raise ftcomm.ConfigError(
                "torch.distributed looks for what another rank has written, as a group of another "
                "backend does; each process of ftcomm has a store of its own",
                remedy="make groups by the backend ftcomm: call new_group() without backend=",
            )
