"""Features that this system lacks for groups of several processes, reported before any attempt.

Linux has everything; macOS has what is needed, less what `docs/running.md` lists; Windows has
the group of one.
"""

import os
import platform
import select
import sys
import threading

from ftcomm.errors import ConfigError

# Their stores become visible in the order in which they were made, so a counter that has moved
# says that the bytes before it are there.  Python has no fence with which others could be told.
ORDERED_STORES = ("x86_64", "AMD64")


def require_groups(what: str) -> None:
    """Return if groups of several processes work on this system.

    Args:
        what: names what needs them, as the beginning of the error's sentence.

    Raises:
        ConfigError: naming what the system lacks, or who has replaced what Python has of it.
    """
    refuse_patched(what)
    if not hasattr(select, "poll"):
        raise ConfigError(
            f"{what} needs poll() on sockets and file descriptors, which {sys.platform} does not"
            " have",
            remedy="use Linux, macOS or WSL 2; a group of one works here:"
            " ftcomm.init(tracker='none') or FTCOMM_TRACKER=none",
        )


def refuse_patched(what: str) -> None:
    """Refuse where a library has put its own threads or polling into Python's modules.

    Raises:
        ConfigError: naming the library.
    """
    library, remedy = "", ""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and any(map(gevent.is_module_patched, ("select", "threading"))):
        library, remedy = "gevent", "call gevent.monkey.patch_all(select=False, thread=False)"
    elif "eventlet" in sys.modules and type(threading.RLock()).__module__ != "_thread":
        # Whatever it was told to leave alone, and trio knows these locks for what they are.
        library, remedy = "eventlet", "call eventlet.monkey_patch() in no process of the job"
    if library:
        raise ConfigError(
            f"{what} needs Python's own threads and polling, and monkey patching by {library} has"
            " replaced them in this process",
            remedy=remedy,
        )


def why_no_shared_memory() -> str | None:
    """Explain in a sentence why this machine cannot share a segment of memory; None if it can."""
    if not hasattr(os, "memfd_create"):
        return f"this interpreter has no memfd_create ({sys.platform})"
    machine = platform.machine()
    if machine not in ORDERED_STORES or sys.maxsize < 1 << 32:
        return f"processors of type {machine} may reorder what this process writes"
    return None
