"""Open files: a tracker needs one for each worker, and is often allowed 1,024.

One that starts the workers itself needs more for each: its output, its end and its log.
"""

import importlib
from typing import Any

from ftcomm.errors import ConfigError

# Spares, unknown peers in their handshake, supervisors' and operators' questions, journal, pipes.
BESIDE_WORKERS = 256
OF_A_CHILD = 4  # two pipes, the descriptor that tells of its end, its file of --log-dir


def files_needed(world_size: int, children: int = 0) -> int:
    """Return the number of files that a tracker may have open.

    Args:
        world_size: of its job.
        children: workers, and spares, that are processes of its own.
    """
    return world_size + BESIDE_WORKERS + OF_A_CHILD * children


def allow_open_files(world_size: int, children: int = 0) -> None:
    """Raise this process's own limit where it is too low and the system lets us.

    Args:
        world_size: as `files_needed`.
        children: as `files_needed`.

    Raises:
        ConfigError: it does not; better now than when the last workers are refused.
    """
    try:
        resource: Any = importlib.import_module("resource")
    except ImportError:  # not on this system
        return
    needed, kind = files_needed(world_size, children), resource.RLIMIT_NOFILE
    soft, hard = resource.getrlimit(kind)
    wanted = limit_to_set(needed, soft, hard, resource.RLIM_INFINITY)
    if wanted is not None:
        resource.setrlimit(kind, (wanted, hard))


def limit_to_set(needed: int, soft: int, hard: int, infinity: int) -> int | None:
    """The soft limit to set, None if it is high enough.

    Raises:
        ConfigError: the hard limit is too low.
    """
    if soft == infinity or soft >= needed:
        return None
    if hard != infinity and hard < needed:
        raise ConfigError(
            f"the tracker needs {needed} open files for its workers, at most {hard} are allowed",
            remedy=f"raise the hard limit: ulimit -n {needed}, or LimitNOFILE={needed} in systemd",
        )
    return needed
