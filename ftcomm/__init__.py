"""Fault-tolerant collectives for training jobs on machines that can vanish.

Names are resolved on first use, so that the tracker and the command line start without numpy.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

__all__ = [
    "AuthenticationError",
    "CallPosition",
    "ClosedError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "Communicator",
    "ConfigError",
    "EvictedError",
    "FencedError",
    "ForkError",
    "FtcommError",
    "Handle",
    "JobFinishedError",
    "JobLostError",
    "JobStoppedError",
    "LogLimitError",
    "Op",
    "ProtocolError",
    "ProtocolVersionError",
    "RankLostError",
    "Restored",
    "RestoredLocal",
    "StateChangedError",
    "Stats",
    "TaskEngine",
    "ThreadError",
    "ThreadLimitError",
    "TrackerLostError",
    "__version__",
    "init",
    "reduction",
    "register",
]
_HOMES = {
    "CallPosition": "ftcomm.public_values",
    "Communicator": "ftcomm.communicator",
    "Handle": "ftcomm.handles",
    "Op": "ftcomm.collectives.op_names",
    "Restored": "ftcomm.public_values",
    "RestoredLocal": "ftcomm.public_values",
    "Stats": "ftcomm.stats",
    "TaskEngine": "ftcomm.tasks",
    "init": "ftcomm.joining",
    "register": "ftcomm.state_types",
    "reduction": "ftcomm.collectives.reductions",
}

if TYPE_CHECKING:
    from ftcomm.collectives.op_names import Op
    from ftcomm.collectives.reductions import reduction
    from ftcomm.communicator import Communicator
    from ftcomm.errors import (
        AuthenticationError,
        ClosedError,
        CollectiveMismatchError,
        CollectiveTimeoutError,
        ConfigError,
        EvictedError,
        FencedError,
        ForkError,
        FtcommError,
        JobFinishedError,
        JobLostError,
        JobStoppedError,
        LogLimitError,
        ProtocolError,
        ProtocolVersionError,
        RankLostError,
        StateChangedError,
        ThreadError,
        ThreadLimitError,
        TrackerLostError,
    )
    from ftcomm.handles import Handle
    from ftcomm.joining import init
    from ftcomm.public_values import CallPosition, Restored, RestoredLocal
    from ftcomm.state_types import register
    from ftcomm.stats import Stats
    from ftcomm.tasks import TaskEngine
else:  # or a type checker would take a name that is not there for Any

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise _unknown(name)
        value = getattr(importlib.import_module(_HOMES.get(name, "ftcomm.errors")), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return list(__all__)

    def _unknown(name: str) -> AttributeError:
        text = f"module 'ftcomm' has no attribute {name!r}"
        if not name.startswith("_"):  # what Python itself asks for has no hint
            hint = importlib.import_module("ftcomm.foreign_names").hint_for_package(name)
            text = text if hint is None else f"{text}: {hint}"
        return AttributeError(text, name=name, obj=sys.modules[__name__])
