"""The libraries that `compare.py` measures, and how their groups are started on one machine."""

import importlib.util
import os
import shutil
import sys
import tomllib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from _groups import Peer

WORKER = Path(__file__).with_name("_worker.py")
SHM, TCP = TRANSPORTS = ("shm", "tcp")
OURS, BASE = "ftcomm", "base"
PACKAGE_FOLDERS = ("", "tracker", "chaos")  # of a checkout, for PYTHONPATH
# More ranks than processors, and root, are what a benchmark in a container has.
MPI_VARIABLES = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


@dataclass(frozen=True)
class Side(Peer):
    """A library in the tables.

    Attributes:
        library: its name there.
        transports: whose tables it is in.
        kinds: of call that it has.
    """

    library: str = OURS
    transports: tuple[str, ...] = TRANSPORTS
    kinds: tuple[str, ...] = ("allreduce", "reduce_scatter", "alltoall", "send_recv")

    def variants(self, kind: str) -> dict[str, str]:
        """By their names in the table, the kinds of order that measure a kind of call."""
        if kind not in self.kinds:
            return {}
        views = self.library == OURS and kind == "allreduce"
        view = {f"{self.library} copy=False": f"{kind} copy=False"} if views else {}
        return {self.library: kind} | view


def sides(base: Path | None) -> list[Side]:
    """Every library, and ftcomm of the checkout `base` too."""
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    return [
        *_ours(OURS, (sys.executable, "-m", "ftcomm_tracker"), {}),
        *(_ours(BASE, _entry_point(base), _paths(base)) if base else []),
        *(_open_mpi(transport, layer) for transport, layer in ((SHM, "vader"), (TCP, "tcp"))),
        Side("gloo", gloo, lacking("torch"), loopback, "gloo"),
        Side("XGBoost", _xgboost, lacking("xgboost"), {}, "XGBoost", kinds=("allreduce",)),
    ]


def lacking(module: str) -> str | None:
    """None where the module is installed."""
    return None if importlib.util.find_spec(module) else f"{module} is not installed"


def no_open_mpi() -> str | None:
    """None where mpi4py and Open MPI's launcher are installed."""
    return lacking("mpi4py") or (None if shutil.which("mpirun") else "mpirun is not installed")


def ftcomm_job(
    ranks: int,
    folder: Path,
    worker: list[str],
    *settings: str,
    command: tuple[str, ...] = (sys.executable, "-m", "ftcomm_tracker"),
) -> list[str]:
    """The launcher with its tracker and all ranks; `settings` are options of `run`."""
    options = ["run", "-n", str(ranks), "--state-dir", str(folder / "job"), *settings]
    return [*command, *options, "--", sys.executable, *worker]


def _ours(library: str, command: tuple[str, ...], variables: dict[str, str]) -> list[Side]:
    def commands(setting: str, ranks: int, folder: Path) -> list[list[str]]:
        worker = [str(WORKER), OURS]
        return [ftcomm_job(ranks, folder, worker, "--transport", setting, command=command)]

    return [
        Side(
            f"{library} {transport}",
            partial(commands, setting),
            None,
            variables,
            library,
            (transport,),
        )
        for transport, setting in ((SHM, "auto"), (TCP, "tcp"))
    ]


def _entry_point(checkout: Path) -> tuple[str, ...]:
    """The launcher of another commit, by its own entry point."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    module, function = project["project"]["scripts"]["ftcomm-tracker"].split(":")
    return (sys.executable, "-c", f"from {module} import {function}; {function}()")


def _paths(checkout: Path) -> dict[str, str]:
    """The packages of another commit, before those that are installed."""
    folders = [str(checkout / part) for part in PACKAGE_FOLDERS]
    # safe path: else `python -m` finds the packages of the folder that it is started in
    return {"PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}


def _open_mpi(transport: str, layer: str) -> Side:
    """Open MPI over one of its byte transfer layers; it calls shared memory vader."""

    def commands(ranks: int, _folder: Path) -> list[list[str]]:
        layers = ["--mca", "pml", "ob1", "--mca", "btl", f"{layer},self"]
        mpirun = ["mpirun", "-n", str(ranks), *layers, "--bind-to", "none"]
        return [[*mpirun, sys.executable, str(WORKER), "Open MPI"]]

    name = f"Open MPI {transport}"
    return Side(name, commands, no_open_mpi(), MPI_VARIABLES, "Open MPI", (transport,))


def gloo(ranks: int, folder: Path) -> list[list[str]]:
    """Start one process a rank, which meet in a file."""
    worker, store = [sys.executable, str(WORKER), "gloo"], str(folder / "store")
    return [[*worker, str(rank), str(ranks), store] for rank in range(ranks)]


def _xgboost(ranks: int, _folder: Path) -> list[list[str]]:
    return [[sys.executable, str(WORKER), "XGBoost", str(ranks)]]
