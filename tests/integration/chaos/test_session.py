"""A session decides what is run, with which limit, and what never came; runs are played."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ftcomm_chaos.report.run_record import RunRecord
from ftcomm_chaos.report.verdict import RunExit
from ftcomm_chaos.runner import session
from ftcomm_chaos.runner.fault_plan import Every
from ftcomm_chaos.runner.fault_scheduler import FaultScheduler
from ftcomm_chaos.runner.job import JobSpec
from ftcomm_chaos.runner.runner import ChaosRunOptions
from ftcomm_chaos.runner.session import (
    SLOWER,
    STARTS_S,
    RunRequest,
    RunSession,
    digest_of,
    run_session,
)
from ftcomm_chaos.runner.spot_trace import parse_trace
from tests.integration.chaos.scenarios import kill, killed_once, process, run

KILLS: list[dict[str, Any]] = [{"at": {"every": 2.0}, "kind": "sigkill"}]
JOB = JobSpec("without faults", Path("/there/reference"), 2, ("true",), (), (), {})


@dataclass
class Played:
    """Runs that are played one after the other; what they were asked is kept."""

    records: list[RunRecord]
    violations: dict[str, str]  # by the name of a run, where it is compared with the first
    asked: list[tuple[FaultScheduler, ChaosRunOptions]] = field(default_factory=list)

    async def run_once(
        self, job: JobSpec, schedule: FaultScheduler, options: ChaosRunOptions
    ) -> RunRecord:
        self.asked.append((schedule, options))
        record = self.records.pop(0)
        job.out.mkdir(parents=True)
        (job.out / "model").write_text(record.result)
        return record

    def judge_history(self, job: JobSpec, record: RunRecord, reference: Any) -> Any:
        if reference is not None and job.name in self.violations:
            record.violations.append(self.violations[job.name])
        return "a history"


async def played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: RunRequest, play: Played
) -> RunSession:
    monkeypatch.setattr(session, "run_once", play.run_once)
    monkeypatch.setattr(session, "judge_history", play.judge_history)
    for name in ("reference", "run-1", "again"):
        (tmp_path / name).mkdir()
    job = replace(JOB, folder=tmp_path / "reference")
    return await run_session(replace(request, job=job, compare="model"), lambda _: None)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("limit_s", "duration_s", "limits"),
    [
        (None, None, [SLOWER * 10 + STARTS_S]),
        (None, 4.0, [SLOWER * 10 + STARTS_S + 4.0]),
        (30.0, 4.0, [30.0]),
    ],
)
async def test_a_limit_that_is_given_is_the_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit_s: float | None,
    duration_s: float | None,
    limits: list[float],
) -> None:
    play = Played([run(), killed_once()], {})
    request = RunRequest(JOB, KILLS, limit_s=limit_s, duration_s=duration_s)
    ended = await played(tmp_path, monkeypatch, request, play)
    assert ended.verdict.outcome is RunExit.PASSED
    assert [options.limit_s for _, options in play.asked[1:]] == limits


@pytest.mark.trio
async def test_a_job_that_waits_for_the_machines_of_its_trace_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = kill(1, 2.0, "1", 11)
    play = Played([run(), run(deliveries=[lost], processes=[process("1", 11, "SIGKILL")])], {})
    trace = parse_trace("0,add,a\n0,add,b\n1000,remove,a\n3600000,add,c")
    await played(tmp_path, monkeypatch, RunRequest(JOB, trace=trace, speed=2.0), play)
    assert [options.limit_s for _, options in play.asked[1:]] == [SLOWER * 10 + STARTS_S + 1800.0]


@pytest.mark.trio
async def test_a_kind_of_fault_that_never_came_is_not_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = [*KILLS, {"at": {"every": 3600.0}, "kind": "sigstop", "for": 1.0}]
    play = Played([run(), killed_once()], {})
    ended = await played(tmp_path, monkeypatch, RunRequest(JOB, plan), play)
    assert ended.verdict.outcome is RunExit.NOTHING_TESTED
    assert ended.verdict.reasons == ["not delivered: fault 2: sigstop for random every 3600 s"]


@pytest.mark.trio
@pytest.mark.parametrize(("duration_s", "every_s"), [(None, 4.5), (600.0, 4.5), (3.0, 1.5)])
async def test_a_random_plan_loses_everything_once_about_halfway(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    duration_s: float | None,
    every_s: float,
) -> None:
    """Halfway through the job, or through the time for faults if that is shorter."""
    monkeypatch.setattr(session, "_worth_another", lambda *_: False)
    play = Played([run(), killed_once()], {})
    request = RunRequest(JOB, KILLS, loses_all_once=True, duration_s=duration_s)
    ended = await played(tmp_path, monkeypatch, request, play)
    lost = f"not delivered: fault 2: lose_all for all every {every_s:g} s"
    assert ended.verdict.reasons == [lost]
    _, second = play.asked[1][0].entries
    assert second.at == Every(every_s, 1)


@pytest.mark.trio
async def test_a_script_whose_results_differ_on_the_way_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"run 1 with faults": "as-reference: a", "without faults, again": "as-reference: b"}
    play = Played([run(), killed_once(), run("without faults, again")], found)
    ended = await played(tmp_path, monkeypatch, RunRequest(JOB, KILLS), play)
    assert ended.verdict.outcome is RunExit.VIOLATED
    assert "in as-reference: b: the script does not compute the same twice" in str(ended.verdict)


@pytest.mark.trio
async def test_a_file_that_is_not_there_without_faults_is_noticed_before_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Played([run(result="")], {})
    ended = await played(tmp_path, monkeypatch, RunRequest(JOB, KILLS), play)
    assert (ended.verdict.outcome, len(play.asked)) == (RunExit.NOTHING_TESTED, 1)
    (reason,) = ended.verdict.reasons
    assert reason.startswith("model is not there or empty after the run without faults")


def test_a_file_with_nothing_in_it_is_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "model").touch()
    assert (digest_of(tmp_path / "model"), digest_of(tmp_path / "none")) == ("", "")
    (tmp_path / "model").write_text("x")
    assert digest_of(tmp_path / "model").startswith("2d711642")
