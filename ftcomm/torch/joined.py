"""The communicator of this process, for what is not given one."""

from typing import Any

import ftcomm

_joined: list[ftcomm.Communicator] = []  # of one, the newest


def init(*arguments: Any, **options: Any) -> ftcomm.Communicator:
    """`ftcomm.init`, for `DDP` and ``init_process_group("ftcomm")`` to use its communicator."""
    return use(ftcomm.init(*arguments, **options))


def use(comm: ftcomm.Communicator) -> ftcomm.Communicator:
    """Have `DDP` and ``init_process_group("ftcomm")`` use `comm`, and return it."""
    _joined[:] = [comm]
    return comm


def is_joined() -> bool:
    """Tell whether `joined` has a communicator."""
    return bool(_joined)


def joined() -> ftcomm.Communicator:
    """The communicator of `init` or `use`.

    Raises:
        ConfigError: there is none.
    """
    if not _joined:
        raise ftcomm.ConfigError(
            "this process has no communicator for torch",
            remedy="call ftcomm.torch.init() first, or ftcomm.torch.use() with one that is open",
        )
    return _joined[0]
