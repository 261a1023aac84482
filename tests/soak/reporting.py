"""Messages of a soak's processes, and the kernel's figures of a process."""

import json
import os
import sys
from pathlib import Path
from typing import Any

PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


def report(**fields: Any) -> None:
    """Write one report on the standard output, at once."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def usage(pid: int) -> dict[str, float] | None:
    """Resident memory and open descriptors of a process, None if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return {
            "rss_kib": pages * PAGE_KIB,
            "fds": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        }
    except (OSError, IndexError):
        return None
