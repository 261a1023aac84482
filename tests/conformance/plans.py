"""Plan of a scenario, and the processes that carry it out."""

import dataclasses
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcomm.config.environment import process_environment
from ftcomm.config.job_settings import SETTINGS

ROOT = Path(__file__).parents[2]
WALL_S = 180.0  # generous: a shared machine may be many times slower than an idle one


@dataclasses.dataclass(frozen=True)
class Plan:
    """One scenario.

    Attributes:
        n: world size.
        program: what the workers run, see `programs`; with `gates`, see `recorder`.
        faults: addresses as `ftcomm.diagnostics.fault_injection` takes them.
        tracker_faults: addresses as `ftcomm_tracker.server.fault_injection` takes them; the
            tracker is started again on its state directory after each.
        settings: options of ``ftcomm-tracker serve``.
        killed: deaths that the test causes by its own signals.
        stopped: stops that the test causes by its own signals.
        resume: let a stopped worker go on as soon as the kernel says that it stands still.
        exits: exit statuses expected beside 0 and the planned deaths, sorted.
        restart: start workers again when they die; False leaves that to the test.
        standby: the tracker has a store, and is started so that another one may wait beside it.
        stored: the job has a store, and its tracker no other beside it.
        wall_s: limit for the whole job.
    """

    n: int
    program: Mapping[str, Any]
    faults: tuple[str, ...] = ()
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    tracker_faults: tuple[str, ...] = ()
    killed: int = 0
    stopped: int = 0
    resume: bool = False
    exits: tuple[int, ...] = ()
    restart: bool = True
    standby: bool = False
    stored: bool = False
    wall_s: float = WALL_S

    @property
    def deaths(self) -> int:
        """Number of processes that must have died of a signal."""
        fatal = [f for f in self.faults if "=" not in f or f.rpartition("=")[2].startswith("kill")]
        return len(fatal) + self.killed

    @property
    def stops(self) -> int:
        """Number of times that a process must have been stopped."""
        return sum(fault.endswith("=stop") for fault in self.faults) + self.stopped

    def serve_command(self) -> list[str]:
        """``ftcomm-tracker serve`` with the plan's constants, for ``python``."""
        constants = {name: value for name, value in self.settings.items() if name not in SETTINGS}
        changed = ["-m", "tests.helpers.constants", json.dumps(constants)]
        return [*(changed if constants else ["-m", "ftcomm_tracker"]), "serve", "-v"]

    def settings_options(self) -> list[str]:
        """The settings as options of ``ftcomm-tracker serve``."""
        given = [
            (SETTINGS[name], value) for name, value in self.settings.items() if name in SETTINGS
        ]
        return [part for setting, value in given for part in (setting.option, str(value))]

    def records(self) -> list[str]:
        """Sorted lines that the record of faults must contain in the end."""
        return sorted(
            [
                *(_recorded(fault) for fault in self.faults),
                *(f"tracker {fault}" for fault in self.tracker_faults),
            ]
        )

    @property
    def is_recorded(self) -> bool:
        """True of half of all plans: their workers write histories, the others run as users' do."""
        told = [self.n, dict(self.program), self.faults, self.tracker_faults, dict(self.settings)]
        return zlib.crc32(json.dumps(told, sort_keys=True).encode()) % 2 == 0

    def without_faults(self) -> "Plan":
        """The same program in peace: the reference."""
        program = {k: v for k, v in self.program.items() if k != "gates"}
        kept = {k: v for k, v in self.settings.items() if k == "algorithm"}
        return Plan(self.n, program, settings=kept)


def _recorded(fault: str) -> str:
    """A fault in full, with the incarnation that the process takes itself for when it fires."""
    address, _, rest = fault.partition("@")
    if rest.startswith(("connected", "authenticated")):  # it does not know its number yet
        address = f"{address.rpartition('.')[0]}.0"
    return f"{address}@{rest}" if "=" in rest else f"{address}@{rest}=kill"


class BrokenError(AssertionError):
    """The job did not go as planned; says where its artefacts are."""


def worker_environment() -> dict[str, str]:
    """This process's environment without what would make the library behave otherwise.

    Nor would each of many processes compile the library again.
    """
    kept = {k: v for k, v in process_environment().items() if not k.startswith("FTCOMM_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    paths = [str(ROOT / part) for part in ("", "tracker", "chaos")]
    return {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(paths)}  # fmt: skip
