"""The result of a run, as its history has it."""

from ftcomm_chaos.runner.history_checks import last_result
from tests.unit.checkers.scenarios import FIRST_OF_1, ScenarioRun, peace


def ending_in(scenario: ScenarioRun, members: list[str], epoch: int) -> ScenarioRun:
    """All end in a call that gives each rank a result of its own."""
    scenario.call(members, FIRST_OF_1, "reduce", epoch)
    for incarnation in members:
        result = f"0{scenario.rank(incarnation)}"
        scenario.find(incarnation, "return", kind="reduce")["result"] = result
    return scenario


def test_the_last_result_is_of_the_same_rank_whoever_has_that() -> None:
    """A spare that has taken rank 0 comes behind the workers in a list by their ids."""
    undisturbed, members = ScenarioRun(2), ["w0-1", "w1-1"]
    taken, successors = ScenarioRun(2), ["z0-1", "w1-1"]
    for scenario, names in ((undisturbed, members), (taken, successors)):
        for incarnation in names:
            scenario.begin(incarnation)
        ending_in(scenario, names, 1)
    assert last_result(undisturbed.history()) == "00 (reduce 1.0)"
    assert last_result(taken.history()) == "00 (reduce 1.0)"


def test_the_last_result_is_none_that_gives_nothing() -> None:
    assert last_result(peace().history()).endswith(" (allreduce 1.0)")
