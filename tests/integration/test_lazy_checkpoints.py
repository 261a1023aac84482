"""Lazy checkpoints in jobs: what is served, and how a broken promise is found."""

from typing import Any

import pytest

from tests.conformance.bench import Bench
from tests.conformance.plans import Plan
from tests.conformance.scenario import DETECT_S

pytestmark = pytest.mark.process

LAZY: dict[str, Any] = {"program": "lazy_recover", "count": 100}
CARELESS: dict[str, Any] = {"program": "careless"}
WATCHED = {"verify": "checkpoints"}


def test_a_new_process_loads_what_was_given_and_not_what_the_users_made_of_it(bench: Bench) -> None:
    """Two restarts in one version, and one that finds the others in a checkpoint."""
    bench.run(Plan(3, LAZY, ("1.1.5.0@enter", "2.1.7.0@enter", "0.1.10.0@saved")))


def test_a_checkpoint_that_only_a_plan_commits_is_served_to_who_has_died(bench: Bench) -> None:
    """All but one die after saving: the living one's state is what the others load."""
    bench.run(Plan(3, LAZY, ("1.0.10.0@committed", "2.0.10.0@committed", "1.2.0.1@enter")))


def test_a_state_that_takes_longer_to_pack_than_a_silent_worker_is_waited_for(
    bench: Bench,
) -> None:
    """One epoch for the death, and none for the time that the packing takes.

    Seen to fail, with two more epochs and a pair that cannot reach each other, if the holder says
    nothing while it packs.
    """
    slowly = {**LAZY, "program": "slowly_packed", "packing_s": 2.5 * DETECT_S}
    job = bench.run(Plan(2, slowly, ("1.1.5.0@enter",), {"detect_within": DETECT_S}))
    assert {event["epoch"] for event in job.of("result")} == {1, 2}


def test_the_next_checkpoint_names_the_array_that_was_written_to_on_all_ranks(
    bench: Bench,
) -> None:
    """Seen to fail if a watched state is compared only where it is packed."""
    with bench.job(Plan(3, CARELESS, settings=WATCHED, exits=(82,) * 3)) as job:
        job.run()
        texts = [path.read_text() for path in sorted(job.folder.glob("[0-2].*.log"))]
    assert all("StateChangedError: state['w'][1] was written to after" in text for text in texts)


@pytest.mark.smoke
def test_a_new_process_is_not_given_what_was_written_to(bench: Bench) -> None:
    """Seen to fail if a watched state is not compared when it is packed."""
    with bench.job(Plan(3, CARELESS, ("1.1.0.0@enter",), WATCHED, exits=(82,) * 3)) as job:
        job.run()
        text = (job.folder / "0.0.log").read_text()
    assert "StateChangedError: state['w'][1] was written to after" in text
    assert "position 1.0]" in text  # the next checkpoint is at 1.1


def test_all_checkpoint_lazily_or_none_does(bench: Bench) -> None:
    with bench.job(Plan(3, {"program": "odd_lazy", "odd": 1}, exits=(72,) * 3)) as job:
        job.run()
        text = (job.folder / "2.2.log").read_text()
    assert "checkpoint(lazy) at recorder.py:" in text
    assert "checkpoint() at recorder.py:" in text
