"""From a failing seed to the smallest plan of faults that still fails in the same way."""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ftcomm_chaos.sim.fault_plan import SimulatedFault
from ftcomm_chaos.sim.seed_sweep import replay_command
from ftcomm_chaos.sim.simulation import Simulation

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class FailedRun:
    """Failure of one run.

    Attributes:
        place: the check that failed; two runs that fail at one place fail in the same way.
        what: the error in words.
        fired: numbers of the faults that had happened.
    """

    place: str
    what: str
    fired: Numbers


@dataclass(frozen=True)
class Shrunk:
    """The smallest failing plan: without any one of its faults the run does not fail so.

    Attributes:
        seed: the run's.
        fall: how it fails with `plan` alone.
        plan: what is left.
        runs: how many runs it took.
    """

    seed: int
    fall: FailedRun
    plan: tuple[SimulatedFault, ...]
    runs: int

    @property
    def replay(self) -> str:
        """The command that runs exactly this plan."""
        return replay_command(self.seed, tuple(planned.number for planned in self.plan))


def fall_of(seed: int, only: Numbers | None = None) -> FailedRun | None:
    """Run `seed` with these faults alone, or all; how it fails, None if it does not."""
    simulation = Simulation(seed, only=only)
    try:
        simulation.run()
    except Exception as error:  # noqa: BLE001 - whatever escapes a core is a finding
        fired = tuple(sorted(planned.number for _, planned in simulation.faults.fired))
        return FailedRun(_place_of(error), f"{type(error).__name__}: {error}", fired)
    return None


def shrink(seed: int) -> Shrunk | None:
    """Drop faults of a failing seed until none can be dropped; None if it does not fail."""
    whole = fall_of(seed)
    if whole is None:
        return None
    search = _Search(seed, whole)
    numbers = smallest(whole.fired, search.fails_as_before)
    plan = tuple(p for p in Simulation(seed).plan if p.number in numbers)
    return Shrunk(seed, search.fall, plan, search.runs)


class _Search:
    """The runs of one shrinking."""

    def __init__(self, seed: int, whole: FailedRun) -> None:
        self.seed, self.fall = seed, whole
        self.runs = 1

    def fails_as_before(self, numbers: Numbers) -> bool:
        """One run with these faults alone."""
        self.runs += 1
        fall = fall_of(self.seed, numbers)
        if fall is None or fall.place != self.fall.place:
            return False
        self.fall = fall
        return True


def smallest(numbers: Numbers, still_fails: Callable[[Numbers], bool]) -> Numbers:
    """A part of `numbers` that fails, while it without any one of them does not.

    Large pieces are tried first; a run costs as much with one fault as with ten.
    """
    size = max(len(numbers) // 2, 1)
    while numbers:
        rest = next((rest for rest in _without(numbers, size) if still_fails(rest)), None)
        if rest is not None:
            numbers = rest
            size = max(min(size, len(numbers) // 2), 1)
        elif size > 1:
            size //= 2
        else:
            break
    return numbers


def _without(numbers: Numbers, size: int) -> Iterator[Numbers]:
    for start in range(0, len(numbers), size):
        yield numbers[:start] + numbers[start + size :]


def _place_of(error: BaseException) -> str:
    """The line that raised it; a check's helper is not what differs between checks."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.name != "require"]
    last = frames[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno} {last.name}"
