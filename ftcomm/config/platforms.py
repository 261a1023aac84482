"""Features that this system lacks for groups of several processes, reported before any attempt.

Linux has everything; macOS has what is needed, less what `docs/running.md` lists; Windows has
the group of one.
"""

import os
import platform
import select
import sys

from ftcomm.errors import ConfigError

# Their stores become visible in the order in which they were made, so a counter that has moved
# says that the bytes before it are there.  Python has no fence with which others could be told.
ORDERED_STORES = ("x86_64", "AMD64")


def require_groups(what: str) -> None:
    """Return if groups of several processes work on this system.

    Args:
        what: names what needs them, as the beginning of the error's sentence.

    Raises:
        ConfigError: naming what the system lacks.
    """
    if not hasattr(select, "poll"):
        raise ConfigError(
            f"{what} needs poll() on sockets and file descriptors, which {sys.platform} does not"
            " have",
            remedy="use Linux, macOS or WSL 2; a group of one works here:"
            " ftcomm.init(tracker='none') or FTCOMM_TRACKER=none",
        )


def why_no_shared_memory() -> str | None:
    """Explain in a sentence why this machine has no shared-memory links; None if it has them."""
    if not hasattr(os, "memfd_create"):
        return f"this interpreter has no memfd_create ({sys.platform})"
    machine = platform.machine()
    if machine not in ORDERED_STORES or sys.maxsize < 1 << 32:
        return f"processors of type {machine} may reorder what this process writes"
    return None
