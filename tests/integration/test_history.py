"""Histories of real jobs."""

import pytest

from ftcomm.diagnostics.history import EXECUTED, SERVED, Ended, Entered, Raised
from ftcomm_chaos.history import History, read_history
from tests.conformance.bench import Bench
from tests.conformance.harness import Job
from tests.conformance.plans import Plan

pytestmark = pytest.mark.process

LOCALS = {"program": "local_recover", "count": 100}


class RecordedJob(Job):
    """A job whose incarnations are recorded, whatever its plan."""

    def _environment(self, worker: str) -> dict[str, str]:
        return {**super()._environment(worker), "FTCOMM_HISTORY": str(self.history)}


def recorded(bench: Bench, plan: Plan) -> History:
    with RecordedJob(bench.forker, bench.new_folder(), plan) as job:
        job.run()
        return read_history(job.history)


@pytest.mark.smoke
def test_a_killed_process_ends_in_the_call_in_which_it_died_and_the_next_is_served(
    bench: Bench,
) -> None:
    history = recorded(bench, Plan(3, LOCALS, ("1.1.9.0@enter",)))
    assert [record.name for record in history.records] == ["0-1", "1-1", "1-2", "2-1"]
    dead, second = history.records[1], history.records[2]
    last = dead.lines[-1].event
    assert isinstance(last, Entered)
    assert (last.position[1:], dead.ended, history.killed) == ((1, 9), None, [dead])
    how = [(line.event.position[1:], line.event.how) for line in second.returns]
    assert how[:11] == [
        ((-1, 0), SERVED),
        *(((1, seqno), SERVED) for seqno in range(9)),
        ((1, 9), EXECUTED),
    ]
    for record in (history.records[0], second, history.records[3]):
        assert record.lines[-1].event == Ended("closed")
    loads = {line.event.local for line in second.returns if line.event.kind == "load"}
    saved = {
        line.event.local
        for line in dead.returns
        if line.event.kind == "checkpoint" and line.event.version == 1
    }
    assert loads == saved
    assert None not in loads


def test_every_rank_writes_down_the_error_that_ended_its_job(bench: Bench) -> None:
    plan = Plan(3, {"program": "lazy_unlike"}, ("1.0.1.0@enter",), exits=(72,) * 3)
    history = recorded(bench, plan)
    raised = {
        (line.event.error, line.event.cause)
        for record in history.records
        for line in record.lines
        if isinstance(line.event, Raised)
    }
    over = {
        (record.over.event.error, record.over.event.cause)
        for record in history.records
        if record.over
    }
    ((error, _),) = raised
    assert (error, over) == ("CollectiveMismatchError", raised)
    assert {record.ended.event.how for record in history.records if record.ended} == {error}
