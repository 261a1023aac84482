"""Description of the machine, to compare two runs."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any


def machine_facts() -> dict[str, Any]:
    """Processor, system and versions, and how busy the machine was at the beginning."""
    return {
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "processor": _processor(),
        "python": platform.python_version(),
        "numpy": importlib.metadata.version("numpy"),
        **{name: _version(name) for name in ("torch", "mpi4py", "xgboost", "ray")},
    }


def _processor() -> str:
    """The processor's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str | None:
    """None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
