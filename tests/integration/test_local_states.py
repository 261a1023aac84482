"""Local states of real processes: who dies where in a checkpoint, and while they are fetched."""

from typing import Any

import pytest

from ftcomm.execution.data_plane import LOCALS_STAGE, STAGE
from tests.conformance.bench import Bench
from tests.conformance.plans import Plan

pytestmark = pytest.mark.process

LOCAL: dict[str, Any] = {"program": "local_recover", "count": 50}
AT_CHECKPOINT = 10  # collectives of one version
OPTIONS = {"local_replicas": 1}


@pytest.mark.parametrize("point", ["enter", "saved", "committed"])
@pytest.mark.parametrize("rank", [0, 3])
def test_death_around_a_checkpoint_with_local_states(bench: Bench, rank: int, point: str) -> None:
    """With one copy of each beside its owner's."""
    bench.run(Plan(4, LOCAL, (f"{rank}.1.{AT_CHECKPOINT}.0@{point}",), OPTIONS))


def test_all_but_one_die_after_saving_before_anyone_has_committed(bench: Bench) -> None:
    """One that lives has no copies of theirs yet: the old version's must still be there."""
    faults = tuple(f"{rank}.1.{AT_CHECKPOINT}.0@saved" for rank in (1, 2, 3))
    bench.run(Plan(4, LOCAL, faults, {"replicas": 4, "local_replicas": 3}))


@pytest.mark.parametrize("copy", [0, 1], ids=["first copy", "second copy"])
def test_death_while_copies_are_sent(bench: Bench, copy: int) -> None:
    fault = f"2.1.{AT_CHECKPOINT}.0@half_received#{(LOCALS_STAGE + copy) * STAGE}"
    bench.run(Plan(4, LOCAL, (fault,), {"local_replicas": 2}))


@pytest.mark.smoke
def test_a_holder_dies_while_it_serves_and_another_takes_over(bench: Bench) -> None:
    bench.run(Plan(4, LOCAL, ("1.1.3.0@enter", "2.1.3.0@serving"), {"local_replicas": 2}))


def test_a_replacement_dies_while_it_fetches(bench: Bench) -> None:
    bench.run(Plan(4, LOCAL, ("1.1.3.0@enter", "1.-1.0.1@loading"), OPTIONS))


def test_each_dies_once_and_no_copy_is_missed(bench: Bench) -> None:
    """One after the other in every version: each copy is made again before the next death."""
    faults = [f"{index % 4}.{index // 4}.{2 + 2 * (index % 4)}.{index // 4}" for index in range(8)]
    bench.run(Plan(4, LOCAL, tuple(f"{fault}@enter" for fault in faults), OPTIONS))


def test_states_that_travel_in_several_pieces_survive_their_owner(bench: Bench) -> None:
    """Default, local states, and what the replacement fetches: 16 MiB and the rest each."""
    large = {**LOCAL, "count": 2_200_000, "versions": 2}
    bench.run(Plan(2, large, ("1.1.3.0@enter",), {"local_replicas": 1}))


def test_a_local_state_without_copies_dies_with_its_owner(bench: Bench) -> None:
    plan = Plan(3, LOCAL, ("1.1.3.0@enter",), {"local_replicas": 0}, exits=(71,) * 3)
    with bench.job(plan) as job:
        job.run()
        text = (job.folder / "0.0.log").read_text()
    assert (
        "the local state of worker 1 (rank 1) in checkpoint 1 is needed and exists nowhere" in text
    )
    assert "its holders were 1 (rank 1)" in text


def test_who_passes_no_local_state_where_others_do_is_named_to_all(bench: Bench) -> None:
    with bench.job(Plan(3, {"program": "odd_local", "odd": 1}, exits=(72,) * 3)) as job:
        job.run()
        text = (job.folder / "2.2.log").read_text()
    assert "checkpoint(with a local state) at recorder.py:" in text
    assert "checkpoint() at recorder.py:" in text
