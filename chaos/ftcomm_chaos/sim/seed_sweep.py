"""Many seeds in a row, and what they showed together."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ftcomm_chaos.sim.simulation import Simulation, SimulationOutcome

MIN_FAULTS_PER_RUN = 8.4  # on average: 25,000 in 3,000 jobs; fewer test less than is said


def replay_command(seed: int, only: tuple[int, ...] | None = None) -> str:
    """The command that shows a run again, with some of its faults or all."""
    some = "" if only is None else f" --only-faults {','.join(map(str, only)) or 'none'}"
    return f"ftcomm-chaos sim --seed {seed}{some} --trace"


@dataclass
class Failure:
    """A seed that broke a rule."""

    seed: int
    what: str

    @property
    def replay(self) -> str:
        """The command that shows it again."""
        return replay_command(self.seed)


@dataclass
class Sweep:
    """Outcome of a range of seeds."""

    runs: int = 0
    events: int = 0
    epochs: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    digest: str = ""  # of all that happened, in hexadecimal, where it was asked for

    def add(self, outcome: SimulationOutcome) -> None:
        """Count one run."""
        self.runs += 1
        self.events += outcome.steps
        self.epochs += outcome.epochs
        self.endings[outcome.fatal_decision] += 1
        self.faults.update(outcome.faults)

    @property
    def faults_per_run(self) -> float:
        """Faults that really happened."""
        return sum(self.faults.values()) / max(self.runs, 1)

    @property
    def too_few_faults(self) -> bool:
        """So little went wrong that nothing is shown by it."""
        return self.faults_per_run < MIN_FAULTS_PER_RUN

    @property
    def ok(self) -> bool:
        """No rule was broken, and enough went wrong to say so."""
        return not self.failures and not self.too_few_faults


def run_seeds(seeds: Iterable[int], *, stop_after: int = 10, digesting: bool = False) -> Sweep:
    """Run every seed, up to `stop_after` failures; with a digest of their traces if asked."""
    sweep, digest = Sweep(), hashlib.sha256()
    for seed in seeds:
        simulation = Simulation(seed, tracing=digesting)
        try:
            sweep.add(simulation.run())
        except Exception as error:  # noqa: BLE001 - whatever escapes a core is a finding
            sweep.failures.append(Failure(seed, f"{type(error).__name__}: {error}"))
            if len(sweep.failures) >= stop_after:
                break
        digest.update("\n".join(simulation.world.lines).encode())
    if digesting:
        sweep.digest = digest.hexdigest()
    return sweep
