"""Random histories: simulated jobs that break no rule, and the same with one result changed."""

import dataclasses
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ftcomm.diagnostics.history import encode, file_name
from ftcomm_chaos.checkers import check
from ftcomm_chaos.history import History, IncarnationRecord, read_history
from ftcomm_chaos.sim.history import LIMITS
from ftcomm_chaos.sim.simulation import Simulation

SEEDS = st.integers(0, 100_000)


def simulated(seed: int) -> History:
    simulation = Simulation(seed, durable=False)  # one resumed from a store begins in its middle
    simulation.run()
    return simulation.monitor.history()


def on_disk(history: History, folder: Path) -> History:
    """Written as incarnations write it, and read as unauthenticated peers' files are."""
    for incarnation in history.records:
        lines = [encode(line.event, line.t) for line in (incarnation.started, *incarnation.lines)]
        (folder / file_name(incarnation.worker, incarnation.incarnation)).write_bytes(
            b"".join(lines)
        )
    return read_history(folder)


def events(incarnation: IncarnationRecord) -> list[object]:
    return [line.event for line in (incarnation.started, *incarnation.lines)]


@settings(max_examples=10)
@given(SEEDS)
def test_what_a_simulated_job_leaves_is_read_back_and_breaks_no_rule(seed: int) -> None:
    history = simulated(seed)
    with TemporaryDirectory() as folder:
        read = on_disk(history, Path(folder))
    assert [events(incarnation) for incarnation in read.records] == [
        events(incarnation) for incarnation in history.records
    ]
    assert check(read, limits=LIMITS) == []


@settings(max_examples=10)
@given(SEEDS, st.randoms(use_true_random=False))
def test_one_changed_result_in_it_is_found(seed: int, rng: Random) -> None:
    history = simulated(seed)
    shared = [
        (incarnation, line)
        for incarnation in history.records
        for line in incarnation.returns
        if sum(
            line.event.position == other.event.position and other.event.version is None
            for third in history.records
            for other in third.returns
        ) > 1
    ]  # fmt: skip
    assume(shared)
    incarnation, line = rng.choice(shared)
    changed = dataclasses.replace(line, event=dataclasses.replace(line.event, result="0bad"))
    lines = tuple(changed if x.event is line.event else x for x in incarnation.lines)
    records = tuple(
        dataclasses.replace(x, lines=lines) if x is incarnation else x for x in history.records
    )
    found = {violation.rule for violation in check(History(records), limits=LIMITS)}
    assert found == {"same-bytes" if line.event.version is None else "same-state"}
