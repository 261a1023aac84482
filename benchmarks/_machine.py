"""Description of the machine, to compare two runs."""

import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ftcomm.core import which


def machine_facts() -> dict[str, Any]:
    """Date and command, processor, system, versions, and how busy the machine was before."""
    script = Path(sys.argv[0])
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": shlex.join(["python", f"{script.parent.name}/{script.name}", *sys.argv[1:]]),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "processor": _processor(),
        "python": platform.python_version(),
        "numpy": importlib.metadata.version("numpy"),
        "core": which()[0],
        "Open MPI": _open_mpi(),
        **{name: _version(name) for name in ("torch", "mpi4py", "xgboost", "ray")},
    }


def _processor() -> str:
    """The processor's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _open_mpi() -> str | None:
    """None where it is not installed."""
    mpirun = shutil.which("mpirun")
    if not mpirun:
        return None
    done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.split("\n", 1)[0].rpartition(" ")[2] or None


def _version(package: str) -> str | None:
    """None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
