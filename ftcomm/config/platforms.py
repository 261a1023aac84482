"""What this system lacks for groups of several processes, said before anything is tried.

Linux has everything; macOS has what is needed, less what `docs/operations.md` lists; Windows has
the group of one.
"""

import platform
import select
import sys

from ftcomm.errors import ConfigError


def python_version() -> str:
    """Implementation and minor version, within which a function has one bytecode."""
    return f"{platform.python_implementation()[:16]} {sys.version_info[0]}.{sys.version_info[1]}"


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
