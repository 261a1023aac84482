"""Registration of the backend, and groups of a communicator that is open."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

import ftcomm
from ftcomm.torch.distributed.process_group import BACKEND, FtcommGroup
from ftcomm.torch.requirement import require_backend

_stores: list[Any] = []  # torch keeps the C++ half of a store alone


def register() -> None:
    """Let torch.distributed know the backend, and ``init_method="ftcomm://"``."""
    if BACKEND in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(BACKEND, create, devices=["cpu"])
    dist.register_rendezvous_handler(BACKEND, rendezvous)


def init_process_group() -> None:
    """Make the default process group one of the communicator that is open: `ftcomm.current`.

    Raises:
        ImportError: torch is too old for the backend.
        ConfigError: no communicator is open, or several are.
    """
    require_backend(torch)
    store, rank, world_size = next(rendezvous(""))
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=world_size)


def rendezvous(_url: str, *_: Any, **_options: Any) -> Iterator[tuple[Any, int, int]]:
    """The store, rank and world size: the store is this process's own, as ranks meet by ftcomm."""
    comm = ftcomm.current()
    # One rank alone writes all that any backend looks for.
    _stores.append(dist.HashStore() if comm.world_size == 1 else OwnStore())
    yield _stores[-1], comm.rank, comm.world_size


def create(_store: Any, rank: int, size: int, _timeout: Any) -> FtcommGroup:
    """The group that torch asks for: the default one, if there is none yet; raises ConfigError."""
    comm = ftcomm.current()
    if size != comm.world_size:
        raise ftcomm.ConfigError(
            f"a group of {size} of {comm.world_size} ranks was asked for",
            remedy="ftcomm has no groups of some ranks: use a mesh of one dimension",
        )
    if rank != comm.rank:
        raise ftcomm.ConfigError(
            f"torch calls this process rank {rank}, ftcomm calls it rank {comm.rank}",
            remedy="pass init_method='ftcomm://', or rank=comm.rank, to init_process_group",
        )
    return FtcommGroup(comm, is_default=not dist.is_initialized())


class OwnStore(dist.Store):
    """The store of one process alone, where torch.distributed wants one that all ranks share.

    Groups of ftcomm need no store.  Groups of other backends meet by it, and would wait for half an
    hour for what no other rank writes here; this store refuses at once.
    """

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
        """Read a value; raises ConfigError."""
        self.wait([key])
        return bytes(self._store.get(key))

    def wait(self, keys: Sequence[str], *_: Any) -> None:
        """See that all `keys` are there; raises ConfigError."""
        if not self.check(keys):
            raise ftcomm.ConfigError(
                "torch.distributed looks for what another rank has written, as a group of another "
                "backend does; each process of ftcomm has a store of its own",
                remedy="make groups by the backend ftcomm: call new_group() without backend=",
            )
