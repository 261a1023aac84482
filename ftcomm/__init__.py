"""Fault-tolerant collectives for training jobs on machines that can vanish.

Names are resolved on first use, so that the tracker and the command line start without numpy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftcomm.collectives.ops import reduction as reduction
    from ftcomm.communicator import Communicator as Communicator
    from ftcomm.joining import init as init

__version__ = "0.2.0"

_ERRORS = (
    "AuthenticationError",
    "ClosedError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "ConfigError",
    "EvictedError",
    "FencedError",
    "ForkError",
    "FtcommError",
    "JobFinishedError",
    "JobLostError",
    "JobStoppedError",
    "LogLimitError",
    "ProtocolError",
    "ProtocolVersionError",
    "RankLostError",
    "StateChangedError",
    "ThreadError",
    "ThreadLimitError",
    "TrackerLostError",
)
_HOMES = {
    "init": "ftcomm.joining",
    "Communicator": "ftcomm.communicator",
    "reduction": "ftcomm.collectives.ops",
    **dict.fromkeys(_ERRORS, "ftcomm.errors"),
}

__all__ = ["Communicator", "__version__", "init", "reduction", *_ERRORS]  # noqa: PLE0604 - strings only


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ftcomm' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
