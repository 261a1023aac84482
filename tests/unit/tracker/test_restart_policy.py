"""Restart policy: scenarios of exits, and the decisions."""

import signal

import pytest

from ftcomm import errors
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.launcher.processes.script_errors import ScriptError
from ftcomm_tracker.launcher.restart_policy import (
    NEVER_CLOSED,
    Decision,
    Finished,
    GiveUp,
    NoRestart,
    RestartAfter,
    RestartLimits,
    RestartPolicy,
    describe,
    describe_exit,
)

HOUR = 3600.0
BAD = ScriptError("ValueError: bad batch", "train.py:12")


def policy_of(max_restarts: int = 20, window_s: float = HOUR) -> RestartPolicy:
    return RestartPolicy(RestartLimits(max_restarts, window_s))


def exits(policy: RestartPolicy, *stories: tuple[int, Position]) -> list[Decision]:
    return [
        policy.after_exit("0", status, closed=False, progress=progress, now=float(number))
        for number, (status, progress) in enumerate(stories)
    ]


def failures(
    policy: RestartPolicy, *stories: tuple[ScriptError | None, Position]
) -> list[Decision]:
    return [
        policy.after_exit("0", 1, closed=False, progress=progress, now=0.0, error=error)
        for error, progress in stories
    ]


def test_the_first_restart_is_at_once_and_later_ones_back_off_to_ten_seconds() -> None:
    policy = policy_of()
    scenario = [(-9, Position(0, 0, n)) for n in range(9)]
    delays = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0)
    assert exits(policy, *scenario) == [RestartAfter(delay_s) for delay_s in delays]
    assert policy.restarts == 9


def test_in_a_window_shorter_than_the_clocks_resolution_each_death_is_the_first() -> None:
    """So long after the machine's start, no float is within the window before `now`."""
    policy = policy_of(window_s=1e-12)
    now = 345678.9
    assert now - 1e-12 == now
    found = [
        policy.after_exit("0", 1, closed=False, progress=START, now=now + death)
        for death in range(3)
    ]
    assert found == [RestartAfter(0.0)] * 3


def test_too_many_deaths_without_progress_give_the_worker_up() -> None:
    *again, last = exits(policy_of(2), (1, START), (-11, START), (1, START))
    assert again == [RestartAfter(0.0), RestartAfter(0.5)]
    assert last == GiveUp(
        "worker 0 died 3 times within 3600 s while the job stood at -1.0"
        " (last: exited with status 1)"
    )


def test_twenty_restarts_in_an_hour_are_allowed_and_no_more() -> None:
    *again, last = exits(policy_of(), *[(-9, START)] * 21)
    assert [type(decision) for decision in again] == [RestartAfter] * 20
    assert isinstance(last, GiveUp)


def test_one_death_in_three_hours_never_ends_a_job() -> None:
    policy = policy_of(1)
    decisions = [
        policy.after_exit("0", -9, closed=False, progress=START, now=3 * HOUR * number)
        for number in range(1000)
    ]
    assert decisions == [RestartAfter(0.0)] * 1000


@pytest.mark.parametrize(
    ("times", "given_up"),
    [
        ((0.0, 1.0, 2.0), True),
        ((0.0, 1.0, 9.9), True),
        ((0.0, 1.0, 10.0), False),
        ((0.0, 9.0, 18.0, 27.0), False),
        ((0.0, 9.0, 11.0, 18.0), True),
    ],
)
def test_only_deaths_within_the_window_count(times: tuple[float, ...], given_up: bool) -> None:
    policy = policy_of(2, window_s=10.0)
    decisions = [policy.after_exit("0", -9, closed=False, progress=START, now=now) for now in times]
    assert isinstance(decisions[-1], GiveUp) == given_up


def test_progress_of_the_job_makes_all_deaths_forgotten() -> None:
    decisions = exits(policy_of(1), *[(1, Position(0, 0, number)) for number in range(100)])
    assert [type(decision) for decision in decisions] == [RestartAfter] * 100


def test_a_checkpoint_since_the_last_death_means_at_once_again() -> None:
    scenario = [(-9, Position(0, *place)) for place in ((4, 3), (4, 7), (5, 0), (9, 1), (9, 2))]
    delays = (0.0, 0.5, 0.0, 0.0, 0.5)
    assert exits(policy_of(), *scenario) == [RestartAfter(delay_s) for delay_s in delays]


def test_a_position_that_is_only_out_of_sight_is_no_progress() -> None:
    there = Position(0, 4, 2)
    decisions = exits(policy_of(2), (1, there), (1, START), (1, there))
    assert isinstance(decisions[2], GiveUp)


def test_progress_that_was_heard_while_the_worker_ran_counts() -> None:
    policy, there = policy_of(1), Position(0, 4, 2)
    first = exits(policy, (1, START))
    policy.observe(there)
    assert [*first, *exits(policy, (1, START))] == [RestartAfter(0.0)] * 2


def test_progress_of_a_new_attempt_counts_though_it_is_behind_the_old_one() -> None:
    """All was lost at checkpoint 9, and the job goes on from 5: an error at 7 is not one at 5."""
    policy = policy_of()
    policy.observe(Position(0, 9, 4), 1)
    policy.observe(Position(0, 5, 0), 2)
    decisions = failures(policy, (BAD, Position(0, 5, 3)), (BAD, Position(0, 7, 1)))
    assert decisions == [RestartAfter(0.0)] * 2


def test_another_workers_deaths_do_not_count() -> None:
    policy = policy_of(1)
    decisions = [
        policy.after_exit(w, 1, closed=False, progress=START, now=0.0, error=BAD) for w in "012"
    ]
    assert decisions == [RestartAfter(0.0)] * 3


def test_max_restarts_of_zero_ends_by_the_first_death() -> None:
    assert exits(policy_of(0), (1, START)) == [
        GiveUp(
            "worker 0 died 1 time within 3600 s while the job stood at -1.0"
            " (last: exited with status 1)"
        )
    ]


def test_a_script_that_fails_twice_by_the_same_error_ends_the_job() -> None:
    there = Position(0, 2, 7)
    assert failures(policy_of(), (BAD, there), (BAD, there)) == [
        RestartAfter(0.0),
        GiveUp(
            "the script of worker 0 failed twice by the same error while the job stood at 2.7:"
            " ValueError: bad batch (train.py:12)",
            script_failed=True,
        ),
    ]


@pytest.mark.parametrize(
    ("second", "progress"),
    [
        (BAD, Position(0, 2, 8)),
        (ScriptError("ValueError: bad batch", "train.py:13"), Position(0, 2, 7)),
        (ScriptError("ValueError: bad batch 2", "train.py:12"), Position(0, 2, 7)),
        (None, Position(0, 2, 7)),
    ],
)
def test_another_error_or_progress_is_no_repetition(
    second: ScriptError | None, progress: Position
) -> None:
    decisions = failures(policy_of(), (BAD, Position(0, 2, 7)), (second, progress))
    assert decisions == [RestartAfter(0.0), RestartAfter(0.5)]


def test_a_kill_between_two_equal_errors_does_not_hide_them() -> None:
    decisions = failures(policy_of(), (BAD, START), (None, START), (BAD, START))
    assert isinstance(decisions[2], GiveUp)
    assert decisions[2].script_failed


def test_who_has_closed_is_done_however_it_ends() -> None:
    policy = policy_of()
    for status in (0, 1, -9):
        assert policy.after_exit("0", status, closed=True, progress=START, now=0.0) == Finished()


def test_status_zero_without_close_is_a_death() -> None:
    policy = policy_of()
    assert exits(policy, (0, START)) == [RestartAfter(0.0)]
    assert describe_exit(0) == NEVER_CLOSED
    assert describe_exit(0, joined=False) == "ended with status 0 and never called ftcomm.init()"


def test_status_zero_of_all_without_close_ends_the_job_when_it_comes_again() -> None:
    """A handler of SIGTERM may have ended all of them once."""
    policy, first = policy_with_failures(*[ScriptError(NEVER_CLOSED)] * 2)
    assert first == [RestartAfter(0.0)] * 2
    again = policy.after_exit(
        "0", 0, closed=False, progress=START, now=9.0, error=ScriptError(NEVER_CLOSED)
    )
    assert isinstance(again, GiveUp)
    assert again.script_failed
    assert again.reason.endswith(NEVER_CLOSED)


@pytest.mark.parametrize(
    "kind",
    [
        errors.FencedError,
        errors.CollectiveMismatchError,
        errors.JobFinishedError,
        errors.JobLostError,
        errors.RankLostError,
        errors.ScriptFailedError,
        errors.JobStoppedError,
    ],
)
def test_an_end_that_every_rank_shares_is_left_alone(kind: type[errors.FtcommError]) -> None:
    policy = policy_of()
    assert exits(policy, (kind.exit_code, START)) == [
        NoRestart(f"exited with status {kind.exit_code} ({kind.__name__})")
    ]


def test_a_worker_that_is_set_up_wrongly_is_given_up_at_once() -> None:
    policy = policy_of()
    assert exits(policy, (64, START)) == [GiveUp("worker 0 exited with status 64 (ConfigError)")]


@pytest.mark.parametrize("status", [1, 2, 70, 79, 255, -signal.SIGKILL, -signal.SIGSEGV])
def test_other_ends_are_restarted(status: int) -> None:
    assert exits(policy_of(), (status, START)) == [RestartAfter(0.0)]


def test_ends_and_decisions_are_said_in_words() -> None:
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(-77) == "was killed by signal 77"
    assert describe_exit(3) == "exited with status 3"
    texts = [
        describe(d)
        for d in (RestartAfter(0.0), RestartAfter(0.5), Finished(), NoRestart(""), GiveUp(""))
    ]
    assert texts == [
        "starting it again",
        "starting it again in 0.5 s",
        "it had closed: done",
        "leaving it",
        "giving it up",
    ]


def test_a_worker_at_the_logs_limit_is_given_up_so_that_nobody_waits_for_it() -> None:
    policy = policy_of()
    status = errors.LogLimitError.exit_code
    assert exits(policy, (status, START)) == [
        GiveUp(f"worker 0 exited with status {status} (LogLimitError)")
    ]


def test_a_place_that_was_taken_by_one_that_has_ended_is_started_again() -> None:
    policy = policy_of(1)
    fenced = errors.FencedError.exit_code
    decisions = [
        policy.after_exit("0", fenced, closed=False, progress=START, now=0.0, missed=missed)
        for missed in (False, True, True)
    ]
    assert decisions == [
        NoRestart("exited with status 75 (FencedError)"),
        RestartAfter(0.0),
        GiveUp(
            "worker 0 died 2 times within 3600 s while the job stood at -1.0"
            " (last: exited with status 75 (FencedError))"
        ),
    ]


def test_deaths_of_a_spare_are_restarted_ever_later_and_never_end_the_job() -> None:
    policy = policy_of(max_restarts=1)
    decisions = [
        policy.after_exit("s", -9, closed=False, progress=START, now=float(n), as_spare=True)
        for n in range(9)
    ]
    as_member = exits(policy, (-9, START), (-9, START))
    assert decisions == [RestartAfter(d) for d in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0)]
    assert [type(decision) for decision in as_member] == [RestartAfter, GiveUp]


def test_a_worker_whose_rank_a_spare_has_taken_is_started_after_that_recovery() -> None:
    policy = policy_of()
    decisions = [
        policy.after_exit("0", -9, closed=False, progress=START, now=float(n), replaced=True)
        for n in range(3)
    ]
    assert decisions == [RestartAfter(d) for d in (0.5, 0.5, 1.0)]


def policy_with_failures(*found: ScriptError) -> tuple[RestartPolicy, list[Decision]]:
    """Two workers, of whom one after the other fails by the next error."""
    policy = RestartPolicy(RestartLimits(), ("0", "1"))
    return policy, [
        policy.after_exit(
            worker, 1, closed=False, progress=START, now=0.0, error=error, deserted=True
        )
        for worker, error in zip("01", found, strict=False)
    ]


def test_the_same_error_of_all_workers_ends_the_job() -> None:
    policy, (first, second) = policy_with_failures(BAD, BAD)
    assert first == RestartAfter(0.0)
    text = "the script failed by the same error on all ranks: ValueError: bad batch (train.py:12)"
    assert second == GiveUp(text, script_failed=True)
    assert policy.failures == [f"worker {n} failed: {BAD}" for n in "01"]


@pytest.mark.parametrize("other", [ScriptError("ValueError: x", "a.py:1"), None])
def test_another_error_of_one_worker_does_not(other: ScriptError | None) -> None:
    _, decisions = policy_with_failures(BAD, *([other] if other else []))
    assert decisions == [RestartAfter(0.0)] * len(decisions)


def test_an_error_that_may_pass_does_not_end_the_job_though_all_have_it() -> None:
    away = ScriptError("FileNotFoundError: [Errno 2] No such file: 'data'", "train.py:3")
    assert policy_with_failures(away, away)[1] == [RestartAfter(0.0)] * 2


def test_the_same_error_of_all_workers_does_not_while_one_is_back() -> None:
    policy, _ = policy_with_failures(BAD)
    decision = policy.after_exit("1", 1, closed=False, progress=START, now=1.0, error=BAD)
    assert decision == RestartAfter(0.0)
