"""Fault-tolerant collectives for training jobs on machines that can vanish.

Names are resolved on first use, so that the tracker and the command line start without numpy.
`launch` and `Tracker` are in the tracker package.  A worker's library knows its tracker only by the
protocol, so it has their names alone.
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
    "MessageInfo",
    "Op",
    "ProtocolError",
    "ProtocolVersionError",
    "RankLostError",
    "Restored",
    "RestoredLocal",
    "RolledBackError",
    "ScriptFailedError",
    "StateChangedError",
    "Stats",
    "TaskEngine",
    "ThreadError",
    "ThreadLimitError",
    "Tracker",
    "TrackerLostError",
    "__version__",
    "current",
    "init",
    "launch",
    "passes_on",
    "reduction",
    "register",
]
_HOMES = {
    "CallPosition": "ftcomm.api.public_values",
    "Communicator": "ftcomm.communicator",
    "Handle": "ftcomm.nonblocking.handle",
    "MessageInfo": "ftcomm.api.public_values",
    "Op": "ftcomm.collectives.op_argument",
    "Restored": "ftcomm.api.public_values",
    "RestoredLocal": "ftcomm.api.public_values",
    "Stats": "ftcomm.api.public_values",
    "TaskEngine": "ftcomm.tasks.task_engine",
    "Tracker": "ftcomm_tracker.embedding.tracker",
    "current": "ftcomm.join",
    "init": "ftcomm.join",
    "launch": "ftcomm_tracker.embedding.launch",
    "passes_on": "ftcomm.requests.call_site",
    "register": "ftcomm.state.registered_types",
    "reduction": "ftcomm.collectives.op_argument",
}

if TYPE_CHECKING:
    from ftcomm.api.public_values import CallPosition, MessageInfo, Restored, RestoredLocal, Stats
    from ftcomm.collectives.op_argument import Op, reduction
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
        RolledBackError,
        ScriptFailedError,
        StateChangedError,
        ThreadError,
        ThreadLimitError,
        TrackerLostError,
    )
    from ftcomm.join import current, init
    from ftcomm.nonblocking.handle import Handle
    from ftcomm.requests.call_site import passes_on
    from ftcomm.state.registered_types import register
    from ftcomm.tasks.task_engine import TaskEngine
    from ftcomm_tracker.embedding.launch import launch
    from ftcomm_tracker.embedding.tracker import Tracker
else:  # or a type checker would take a name that is not there for Any

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            text = f"module 'ftcomm' has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=sys.modules[__name__])
        if "eventlet" in sys.modules:  # with its sockets most modules cannot be imported
            importlib.import_module("ftcomm.config.platforms").refuse_patched("ftcomm")
        value = getattr(importlib.import_module(_HOMES.get(name, "ftcomm.errors")), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return list(__all__)
