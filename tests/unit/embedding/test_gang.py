"""The ranks of a job that a framework runs: whose report counts, and when nobody is waited for."""

from typing import Any

import pytest

from ftcomm.errors import RankLostError, TrackerLostError
from ftcomm_tracker.embedding.gang import END_WITHIN_S, gather
from ftcomm_tracker.embedding.launch_folder import WorkerReport
from ftcomm_tracker.embedding.pickled import dump
from ftcomm_tracker.embedding.rank_process import report_of_loss

WITHIN_S = 30.0
FORMED, MISSING = {"missing": None}, {"missing": {"workers": [{"worker_id": "2"}], "unnamed": 1}}


class Script:
    """A framework whose tasks end in this order; None where none does in time."""

    def __init__(self, *reports: WorkerReport | None, status: Any = FORMED) -> None:
        self._reports = list(reports)
        self._status = status
        self.timeouts: list[float | None] = []
        self.given_up: list[tuple[str, str]] = []

    def next_report(self, timeout: float | None) -> WorkerReport | None:
        self.timeouts.append(timeout)
        return self._reports.pop(0)

    def status(self) -> Any:
        return self._status

    def give_up(self, worker_id: str, reason: str) -> None:
        self.given_up.append((worker_id, reason))


def returned(rank: int, value: object) -> WorkerReport:
    return WorkerReport(str(rank), rank, "", "", "", False, float(-rank), dump(value))


def raised(rank: int, error: Exception, *, is_own: bool = True) -> WorkerReport:
    name = type(error).__name__
    return WorkerReport(str(rank), rank, name, str(error), "Trace", is_own, rank, dump(error))


def test_results_come_in_the_order_of_the_ranks() -> None:
    script = Script(returned(2, "c"), returned(0, "a"), None, returned(1, "b"))
    assert gather(script, 3, WITHIN_S, "") == ["a", "b", "c"]
    assert script.timeouts == [WITHIN_S, WITHIN_S, WITHIN_S, None]
    assert script.given_up == []


def test_half_a_gang_does_not_wait() -> None:
    script = Script(None, status=MISSING)
    with pytest.raises(RankLostError, match=r"^1 of 3 ranks have started within 30 s") as caught:
        gather(script, 3, WITHIN_S, "add nodes")
    assert caught.value.remedy == "add nodes"


def test_the_first_error_ends_the_job_and_is_raised() -> None:
    """The others raise what the tracker told them, and one of them too late."""
    later = raised(0, RankLostError("worker 1 is gone"), is_own=False)
    script = Script(returned(2, "c"), raised(1, ValueError("bad row")), later, None)
    with pytest.raises(ValueError, match="bad row") as caught:
        gather(script, 4, WITHIN_S, "")
    assert caught.value.__notes__ == ["in rank 1 of 4 (worker 1):\nTrace"]
    assert script.given_up == [("1", "ValueError: bad row")]
    assert script.timeouts == [WITHIN_S, WITHIN_S, END_WITHIN_S, END_WITHIN_S]


def test_an_error_of_the_job_is_raised_as_a_rank_has_it() -> None:
    error = TrackerLostError("no tracker")
    script = Script(*(raised(rank, error, is_own=False) for rank in range(2)))
    with pytest.raises(TrackerLostError, match="no tracker"):
        gather(script, 2, WITHIN_S, "")
    assert script.given_up == [("0", str(error))]


def test_a_rank_that_the_framework_gives_up_ends_the_job() -> None:
    script = Script(report_of_loss("1", "rank 1 was given up"), None)
    with pytest.raises(RankLostError, match="rank 1 was given up"):
        gather(script, 2, WITHIN_S, "")
    assert script.given_up == [("1", "rank 1 was given up")]
