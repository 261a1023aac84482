"""Count what a process has open."""

import gc
from pathlib import Path


def open_descriptors() -> int:
    """Open descriptors of this process.

    What earlier tests left to the collector is closed first: it must not go between two counts.
    """
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))
