"""Every kind of collective, with kills in each: everybody gets what a run in peace gives."""

import pytest

from tests.conformance.bench import Bench
from tests.conformance.kinds import KINDS
from tests.conformance.plans import Plan

pytestmark = pytest.mark.process

PROGRAM = {"program": "every_kind"}


@pytest.mark.parametrize("point", ["enter", "half_sent", "half_received", "done"])
def test_each_kind_is_executed_again_and_replayed_whoever_dies_in_it(
    bench: Bench, point: str
) -> None:
    """One dies in each collective of version 1, another one each time, so each replays them all."""
    faults = [f"{i % 3}.1.{i}.{i // 3}@{point}" for i in range(len(KINDS))]
    if point == "half_sent":
        del faults[KINDS.index("broadcast")]  # a leaf of the tree sends nothing
    bench.run(Plan(3, PROGRAM, tuple(faults)))


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_two_ranks_die_between_the_stages_of_one_collective(bench: Bench, transport: str) -> None:
    stage = 1 << 20  # the frames of a collective's second stage are numbered from here
    leaf = stage + 1  # a leaf of the tree receives in the second round
    faults = (f"1.1.0.0@half_sent#{stage}", f"2.1.3.0@half_received#{leaf}")
    bench.run(Plan(4, PROGRAM, faults, {"transport": transport}))


@pytest.mark.smoke
@pytest.mark.parametrize("point", ["enter", "half_sent", "done"])
def test_an_input_function_is_called_once_where_it_is_executed_and_never_in_replay(
    bench: Bench, point: str
) -> None:
    """Rank 1 dies in collective 1.5, which leaves five to replay, or six."""
    replayed = 6 if point == "done" else 5
    job = bench.run(Plan(3, {**PROGRAM, "lazy": True}, (f"1.1.5.0@{point}",)))
    made = [(event["pid"], event["pos"]) for event in job.of("made")]
    assert len(made) == len(set(made))
    (killed,) = [event["pid"] for event in job.of("exit") if event["status"] < 0]
    second = [e["pos"] for e in job.of("made") if e["worker"] == "1" and e["pid"] != killed]
    assert second[0] == f"1.{replayed}"


@pytest.mark.smoke
def test_out_is_filled_whoever_dies_and_a_wrong_one_costs_no_result(bench: Bench) -> None:
    faults = ("0.0.3.0@done", "2.0.6.0@half_received", "1.0.7.0@enter")
    job = bench.run(Plan(3, {"program": "into_out"}, faults))
    assert len(job.incidents()) >= len(faults) + 1  # the wrong one has the group form again


# Calls 9 to 11 go along a chain, behind an announcement; 21 to 35 are of numbers.
@pytest.mark.parametrize(
    "faults",
    [
        ("1.0.0.0@enter", "2.0.9.0@half_received", "0.0.12.0@done", "1.0.33.1@done"),
        ("1.0.9.0@half_received", "2.0.10.0@enter", "2.0.70.1@enter", "0.0.78.0@half_sent"),
    ],
)
def test_a_root_that_alone_has_the_array_gives_it_to_all_whoever_dies(
    bench: Bench, faults: tuple[str, ...]
) -> None:
    bench.run(Plan(3, {"program": "from_the_root"}, faults))


def test_four_ranks_pass_on_what_the_root_alone_has(bench: Bench) -> None:
    faults = ("2.0.9.0@half_received",)
    bench.run(Plan(4, {"program": "from_the_root"}, faults, {"transport": "tcp"}))


@pytest.mark.parametrize(
    ("call", "theirs"),
    [
        ("broadcast", "broadcast(float64[6 elements, 5 dimensions], root=0)"),
        ("allgather", "allgather(float64[6 elements, 5 dimensions])"),
    ],
)
def test_what_does_not_fit_a_rank_without_an_array_is_refused_with_both_sides(
    bench: Bench, call: str, theirs: str
) -> None:
    plan = Plan(2, {"program": "unnamed_shape", "call": call}, exits=(72,) * 2)
    with bench.job(plan) as job:
        job.run()
        text = (job.folder / "0.0.log").read_text()
    assert f"rank 0 called {theirs} at " in text
    assert "rank 1 called broadcast(root=0) at " in text


def test_lazy_broadcasts_that_were_replayed_count_towards_the_next_barrier(bench: Bench) -> None:
    faults = ("1.0.30.0@enter", "0.0.62.0@done", "2.0.64.0@half_received")
    bench.run(Plan(3, {"program": "lazy_broadcasts", "steps": 70}, faults))


def test_a_restarted_script_that_passes_a_function_to_something_else_is_found_out(
    bench: Bench,
) -> None:
    plan = Plan(3, {"program": "lazy_unlike"}, ("1.0.1.0@enter",), exits=(72,) * 3)
    with bench.job(plan) as job:
        job.run()
        text = (job.folder / "0.0.log").read_text()
    assert "rank 1 called allreduce(op=max) at " in text
    assert "the earlier process of rank 1 called allreduce(op=sum, float64[3]) at " in text


@pytest.mark.smoke
def test_event_loops_forks_second_inits_and_joining_again_disturb_nothing(bench: Bench) -> None:
    job = bench.run(Plan(3, {"program": "surroundings"}))
    assert [incident["victims"] for incident in job.incidents()] == [["1"]]
