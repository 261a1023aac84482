"""The environment of this Python, as `ftcomm` prints it: versions, transports, core, variables."""

import importlib
import json
import platform
import socket
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import ftcomm
from ftcomm.config.environment import VARIABLES, process_environment
from ftcomm.config.platforms import why_no_shared_memory
from ftcomm.errors import ConfigError

NEEDED = ("numpy", "trio", "msgpack", "click", "xxhash")
EXTRAS = {
    "bf16": "ml_dtypes",
    "dask": "distributed",
    "durable": "s3fs",
    "examples": "scikit-learn",
    "keras": "keras",
    "lightgbm": "lightgbm",
    "notebook": "cloudpickle",
    "ray": "ray",
    "torch": "torch",
    "xgboost": "xgboost",
}
NEXT_STEPS = """\
Type next:
  ftcomm-tracker run -n 4 python train.py    run a job with four workers on this machine
  ftcomm-tracker help                        list the commands
  ftcomm-tracker help environment            list the variables"""


def environment_report() -> dict[str, Any]:
    """Facts of this process as one JSON document; a missing package has the version None."""
    variables = process_environment()
    return {
        "version": ftcomm.__version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "packages": {name: _version_of(name) for name in NEEDED},
        "extras": {extra: _version_of(name) for extra, name in EXTRAS.items()},
        "transports": {
            "shm": why_no_shared_memory() is None,
            "unix": hasattr(socket, "AF_UNIX"),
            "tcp": True,
        },
        "core": _core(),
        "variables": {
            name: variables[name] for name in sorted(variables) if name.startswith("FTCOMM_")
        },
    }


def report_text(report: dict[str, Any]) -> str:
    """The report for a terminal, and the commands to type next."""
    packages = [f"{name} {found or 'missing'}" for name, found in report["packages"].items()]
    extras = [
        f"{extra} ({EXTRAS[extra]} {found or 'not installed'})"
        for extra, found in report["extras"].items()
    ]
    transports = [name for name, works in report["transports"].items() if works]
    variables = [_variable_line(name, text) for name, text in report["variables"].items()]
    lines = [
        f"ftcomm {report['version']}",
        f"Python: {report['python']} ({report['executable']})",
        f"Platform: {report['platform']}",
        f"Packages: {', '.join(packages)}",
        f"Extras: {', '.join(extras)}",
        f"Transports: {', '.join(transports)}",
        f"Core: {report['core']}",
        "Variables: none is set" if not variables else "Variables:",
        *variables,
        "",
        NEXT_STEPS,
    ]
    return "\n".join(lines)


def _variable_line(name: str, text: str) -> str:
    """A variable with its value, in quotes so that no byte of it reaches the terminal raw."""
    unknown = "" if name in VARIABLES else "  (ftcomm does not read this variable)"
    return f"  {json.dumps(name)[1:-1]}={json.dumps(text)}{unknown}"


def _core() -> str:
    """The core of this Python, and why it is this one."""
    try:
        kind, why = importlib.import_module("ftcomm.core").which()  # needs numpy
    except (ModuleNotFoundError, ConfigError) as error:
        kind, why = "none", str(error)
    return f"{kind} ({why})"


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
