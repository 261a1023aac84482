"""Checks of `doctor` on one machine, and the judgement of figures: without a network."""

import importlib
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import ftcomm
from ftcomm.config.environment import WorkerOptions, read_token
from ftcomm.errors import ConfigError

Level = Literal["ok", "warn", "fail"]

DESCRIPTORS_FEW = 1024  # two links to each of 256 peers, and as much again for the script
SHARED_MEMORY_SMALL = 64 << 20  # bytes; what containers are given unless more is asked for
CLOCKS_APART_S = 2.0  # more, and the lines of two machines' logs cannot be put side by side
ROUND_TRIP_LONG_S = 0.05  # within one region it is below 2 ms
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, never written to


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    Attributes:
        name: a stable word for scripts, see `docs/running.md`.
        level: fail: workers here cannot take part; warn: they can, but look at it.
        what: what was found.
        todo: what to do, empty for nothing.
    """

    name: str
    level: Level
    what: str
    todo: str = ""


def check_machine(options: WorkerOptions) -> list[Check]:
    """Everything that needs no tracker."""
    return [
        check_versions(),
        check_descriptors(_open_files_limit()),
        check_shared_memory(_free_bytes),
        check_worker_id(options),
        check_token(options.token_file),
    ]


def check_versions() -> Check:
    """Python, numpy and ftcomm as they are installed here."""
    here = f"ftcomm {ftcomm.__version__}, Python {platform.python_version()}"
    try:
        return Check("versions", "ok", f"{here}, numpy {version('numpy')}")
    except PackageNotFoundError:
        todo = "install numpy for this Python"
        return Check("versions", "fail", f"{here}, and no numpy", todo)


def _open_files_limit() -> int:
    resource = importlib.import_module("resource")  # Windows has none, and must get to --help
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return -1 if limit == resource.RLIM_INFINITY else int(limit)


def check_descriptors(limit: int) -> Check:
    """The limit of open files, -1 for none: a worker has up to two links to each other one."""
    if limit < 0 or limit >= DESCRIPTORS_FEW:
        return Check("descriptors", "ok", f"{limit if limit > 0 else 'any number of'} open files")
    todo = f"ulimit -n {DESCRIPTORS_FEW}, or LimitNOFILE= in the unit, for jobs of many workers"
    return Check("descriptors", "warn", f"only {limit} open files are allowed", todo)


def check_shared_memory(free_bytes: Callable[[], int | None]) -> Check:
    """Shared memory, where the system has it; ftcomm uses none of it today, data loaders do."""
    free = free_bytes()
    if free is None:
        return Check("shared_memory", "ok", "no /dev/shm here; ftcomm does not need it")
    text = f"{free >> 20} MiB free in /dev/shm"
    if free >= SHARED_MEMORY_SMALL:
        return Check("shared_memory", "ok", text)
    todo = "give a container more (docker --shm-size, an emptyDir of medium Memory) if your data"
    return Check("shared_memory", "warn", text, f"{todo} loaders use it; ftcomm does not need it")


def _free_bytes() -> int | None:
    return shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else None


def check_worker_id(options: WorkerOptions) -> Check:
    """Report the worker id of a worker that is started like this command."""
    if options.worker_id is None:
        todo = "set FTCOMM_WORKER_ID for each worker, or run this as your scheduler runs workers"
        return Check("worker_id", "warn", "nothing here names a worker", todo)
    return Check("worker_id", "ok", f"a worker started like this is worker {options.worker_id}")


def check_token(path: Path | None) -> Check:
    """The token file, by itself; whether it is the right one shows at the tracker."""
    if path is None:
        todo = "give --token-file, unless the job runs on one machine without a token"
        return Check("token_file", "warn", "no token file is named", todo)
    try:
        read_token(path)
    except ConfigError as error:
        return Check("token_file", "fail", error.cause, error.remedy or "copy the job's token here")
    return Check("token_file", "ok", f"{path} holds a token and is closed to others")


def judge_round_trip(seconds: float) -> Check:
    """Judge the duration of a TCP connect."""
    text = f"connected in {seconds * 1000:.1f} ms"
    if seconds <= ROUND_TRIP_LONG_S:
        return Check("connect", "ok", text)
    return Check("connect", "warn", text, "every small collective takes a few such round trips")


def judge_clocks(here_s: float, there_s: float, round_trip_s: float) -> Check:
    """Clocks of both machines, seconds since 1970; the answer may be a round trip old."""
    apart = abs(here_s - there_s)
    text = f"the clocks are {apart:.1f} s apart"
    if apart <= CLOCKS_APART_S + round_trip_s:
        return Check("clock", "ok", text)
    todo = "nothing of ftcomm depends on it, but logs cannot be compared: run an NTP client"
    return Check("clock", "warn", text, todo)


def judge_versions(there: str) -> Check:
    """The tracker's version; the protocol's was compared in the handshake."""
    if there == ftcomm.__version__:
        return Check("tracker_version", "ok", f"the tracker is ftcomm {there}, as here")
    text = f"the tracker is ftcomm {there}, here it is {ftcomm.__version__}"
    return Check("tracker_version", "warn", text, "install the same version everywhere")
