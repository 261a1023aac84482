"""Histories of a call of which copies are kept: each execution counts by itself."""

import pytest

from ftcomm.protocol.signature import Kind, LogMode, Signature
from ftcomm_chaos.checkers import check
from tests.unit.checkers.scenarios import LOAD, PRELUDE, ScenarioRun

CALL = [0, 0, 0]


def executed_twice(log: LogMode, served: str) -> list[str]:
    """Rank 1 alone has a result in epoch 1, and dies; all have others in epoch 2.

    Then its third process is served as `served` says. Returns what same-bytes finds.
    """
    told = ScenarioRun(2)
    both = ["w0-1", "w1-1"]
    for incarnation in both:
        told.begin(incarnation)
    told.plan(1, dict.fromkeys(both, PRELUDE), PRELUDE)
    told.call(both, PRELUDE, "allreduce", 1)
    told.load(both, LOAD, 1, 0)
    give(told, "w0-1", log, 1)
    give(told, "w1-1", log, 1, "first")
    again(told, "w1-2", 2, CALL)
    give(told, "w1-2", log, 2, "second")
    told.leave("w0-1", CALL, "alltoall", 2, "executed")
    again(told, "w1-3", 3, [0, 0, 1])
    give(told, "w1-3", log, 3, served, "served")
    return [each.what for each in check(told.history()) if each.rule == "same-bytes"]


def again(told: ScenarioRun, incarnation: str, epoch: int, frontier: list[int]) -> None:
    told.begin(incarnation)
    told.plan(epoch, {"w0-1": CALL, incarnation: PRELUDE}, frontier)
    told.call([incarnation], PRELUDE, "allreduce", epoch, "served")
    told.load([incarnation], LOAD, epoch, 0, "served")


def give(
    told: ScenarioRun, incarnation: str, log: LogMode, epoch: int, result: str = "", how: str = ""
) -> None:
    """Enter the call, and return from it if there is a result."""
    told.enter(incarnation, CALL, "alltoall")
    told.files[incarnation][-1]["signature"] = Signature(Kind.ALLTOALL, log=log).encode().hex()
    if result:
        told.leave(incarnation, CALL, "alltoall", epoch, how or "executed")
        told.files[incarnation][-1]["result"] = result.encode().hex()


def test_another_execution_may_give_another_result_of_which_copies_are_kept() -> None:
    assert executed_twice(LogMode.COPIES, "second") == []


@pytest.mark.parametrize("served", ["first", "third"])
def test_what_is_served_is_of_the_newest_execution(served: str) -> None:
    (found,) = executed_twice(LogMode.COPIES, served)
    assert found.startswith(f"was given {served.encode().hex()}, where w1-2 was given")


def test_of_contributions_every_execution_gives_the_same() -> None:
    assert executed_twice(LogMode.CONTRIBUTIONS, "second")
    assert executed_twice(LogMode.CONTRIBUTIONS, "first")
