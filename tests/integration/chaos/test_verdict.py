"""The verdict: what passes, what is a violation, and what has tested nothing."""

from typing import Any

import pytest

from ftcomm_chaos.report.run_record import RunRecord
from ftcomm_chaos.report.verdict import RunExit, differs, judge
from tests.integration.chaos.scenarios import killed_once, process, run

UNDISTURBED = run("without faults")


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (killed_once(result="77aa"), "differs: 77aa..., without faults 5af3..."),
        (killed_once(result=""), "is missing or empty, and without faults it is there"),
        (killed_once(status=None, over_limit_s=60.0), "no end within 60 s; `output.txt` in /there"),
        (killed_once(status=72, tail=["said"]), "status 72 (CollectiveMismatchError): said"),
        (killed_once(status=72, error="CollectiveMismatchError: why"), "Error): why"),
        (killed_once(violations=["rule X: bad"]), "run 1 with faults: rule X: bad"),
        (
            run(processes=[process("0", 10, "exited with status 1")]),
            "worker 0 (incarnation 1, process 10) exited with status 1, and no fault did that",
        ),
    ],
)
def test_what_is_wrong_with_a_run_is_a_violation(broken: RunRecord, complaint: str) -> None:
    verdict = judge(UNDISTURBED, [broken])
    assert verdict.outcome is RunExit.VIOLATED
    assert any(complaint in reason for reason in verdict.reasons), verdict.reasons


def test_a_victim_that_lived_is_a_violation() -> None:
    broken = killed_once()
    broken.deliveries[0].confirmed = False
    verdict = judge(UNDISTURBED, [broken])
    assert (verdict.outcome, len(verdict.reasons)) == (RunExit.VIOLATED, 1)


def test_a_script_that_fails_without_faults_is_a_violation() -> None:
    assert judge(run("without faults", status=1), []).outcome is RunExit.VIOLATED


@pytest.mark.parametrize(
    ("reference", "runs", "missed", "reason"),
    [
        (UNDISTURBED, [run()], [], "no fault was delivered"),
        (UNDISTURBED, [killed_once()], ["fault 2"], "not delivered: fault 2"),
        (run(result=""), [killed_once(result="")], [], "so nothing was compared"),
        (UNDISTURBED, [killed_once(status=None)], [], "cut short by a signal after 10 s"),
    ],
)
def test_what_was_not_tested_is_no_pass(
    reference: RunRecord, runs: Any, missed: list[str], reason: str
) -> None:
    verdict = judge(reference, runs, missed=missed)
    assert verdict.outcome is RunExit.NOTHING_TESTED
    assert [reason in text for text in verdict.reasons] == [True]


def test_equal_results_and_a_delivered_fault_pass() -> None:
    assert judge(UNDISTURBED, [killed_once()]) == judge(UNDISTURBED, [killed_once()] * 2)
    assert judge(UNDISTURBED, [killed_once()]).outcome is RunExit.PASSED


@pytest.mark.parametrize(
    ("broken", "again", "where"),
    [
        (killed_once(result="77aa"), run(result="0bad"), "the result"),
        (killed_once(violations=["a: b"]), run(violations=["as-reference: c"]), "as-reference: c"),
    ],
)
def test_a_script_that_differs_from_itself_is_told_so(
    broken: RunRecord, again: RunRecord, where: str
) -> None:
    assert differs(UNDISTURBED, [broken])
    verdict = judge(UNDISTURBED, [broken], again=again)
    assert f"too, in {where}: the script does not compute the same twice" in verdict.reasons[0]


def test_a_second_run_that_fails_is_no_proof_that_the_script_differs_from_itself() -> None:
    again = run("without faults, again", status=1, result="", tail=["no room"])
    verdict = judge(UNDISTURBED, [killed_once(result="77aa")], again=again)
    assert verdict.reasons == [
        "run 1 with faults: the result differs: 77aa..., without faults 5af3...",
        "without faults, again: the job exited with status 1: no room",
    ]


def test_a_script_is_run_again_only_where_something_differs() -> None:
    assert not differs(UNDISTURBED, [killed_once(), killed_once(status=72, result="77aa")])
