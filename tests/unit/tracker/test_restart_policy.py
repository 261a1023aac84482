"""Restart policy: scenarios of exits, and the decisions."""

import signal

import pytest

from ftcomm import errors
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.launcher.restart_policy import (
    Decision,
    Finished,
    GiveUp,
    NoRestart,
    RestartAfter,
    RestartPolicy,
    describe,
    describe_exit,
)


def exits(policy: RestartPolicy, *stories: tuple[int, Position]) -> list[Decision]:
    return [
        policy.after_exit("0", status, closed=False, progress=progress)
        for status, progress in stories
    ]


def test_the_first_restart_is_at_once_and_later_ones_back_off_to_ten_seconds() -> None:
    policy = RestartPolicy(max_restarts=20, give_up_after=3)
    scenario = [(-9, Position(0, 0, n)) for n in range(9)]
    delays = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0)
    assert exits(policy, *scenario) == [RestartAfter(delay_s) for delay_s in delays]
    assert policy.restarts == 9


def test_three_deaths_without_progress_give_the_worker_up() -> None:
    policy = RestartPolicy(max_restarts=20, give_up_after=3)
    *again, last = exits(policy, (1, START), (-11, START), (1, START))
    assert again == [RestartAfter(0.0), RestartAfter(0.5)]
    assert last == GiveUp(
        "worker 0 died 3 times while the job stood at -1.0 (last: exited with status 1)"
    )


def test_progress_of_the_job_starts_the_count_again() -> None:
    policy = RestartPolicy(max_restarts=20, give_up_after=2)
    decisions = exits(
        policy, (1, Position(0, 0, 0)), (1, Position(0, 0, 1)), (1, Position(0, 0, 2))
    )
    assert decisions == [RestartAfter(0.0), RestartAfter(0.5), RestartAfter(1.0)]


def test_a_checkpoint_since_the_last_death_means_at_once_again() -> None:
    policy = RestartPolicy(max_restarts=20, give_up_after=3)
    scenario = [(-9, Position(0, *place)) for place in ((4, 3), (4, 7), (5, 0), (9, 1), (9, 2))]
    delays = (0.0, 0.5, 0.0, 0.0, 0.5)
    assert exits(policy, *scenario) == [RestartAfter(delay_s) for delay_s in delays]


def test_a_position_that_is_only_out_of_sight_is_no_progress() -> None:
    policy = RestartPolicy(max_restarts=20, give_up_after=3)
    there = Position(0, 4, 2)
    decisions = exits(policy, (1, there), (1, START), (1, there))
    assert isinstance(decisions[2], GiveUp)


def test_another_workers_deaths_do_not_count() -> None:
    policy = RestartPolicy(max_restarts=20, give_up_after=2)
    decisions = [policy.after_exit(w, 1, closed=False, progress=START) for w in (0, 1, 2)]
    assert decisions == [RestartAfter(0.0)] * 3


def test_max_restarts_bounds_each_worker() -> None:
    policy = RestartPolicy(max_restarts=1, give_up_after=3)
    decisions = exits(policy, (1, START), (1, Position(0, 0, 1)))
    assert decisions == [
        RestartAfter(0.0),
        GiveUp("worker 0 was restarted 1 time and died again (exited with status 1)"),
    ]


def test_who_has_closed_is_done_however_it_ends() -> None:
    policy = RestartPolicy(max_restarts=20, give_up_after=3)
    for status in (0, 1, -9):
        assert policy.after_exit("0", status, closed=True, progress=START) == Finished()


def test_status_zero_without_close_is_a_death() -> None:
    policy = RestartPolicy(max_restarts=20, give_up_after=3)
    assert exits(policy, (0, START)) == [RestartAfter(0.0)]
    assert "never closed" in describe_exit(0)


@pytest.mark.parametrize(
    "kind",
    [
        errors.FencedError,
        errors.CollectiveMismatchError,
        errors.JobFinishedError,
        errors.JobLostError,
        errors.RankLostError,
        errors.JobStoppedError,
    ],
)
def test_an_end_that_every_rank_shares_is_left_alone(kind: type[errors.FtcommError]) -> None:
    policy = RestartPolicy(max_restarts=20, give_up_after=3)
    assert exits(policy, (kind.exit_code, START)) == [
        NoRestart(f"exited with status {kind.exit_code} ({kind.__name__})")
    ]


def test_a_worker_that_is_set_up_wrongly_is_given_up_at_once() -> None:
    policy = RestartPolicy(max_restarts=20, give_up_after=3)
    assert exits(policy, (64, START)) == [GiveUp("worker 0 exited with status 64 (ConfigError)")]


@pytest.mark.parametrize("status", [1, 2, 70, 79, 255, -signal.SIGKILL, -signal.SIGSEGV])
def test_other_ends_are_restarted(status: int) -> None:
    assert exits(RestartPolicy(max_restarts=20, give_up_after=3), (status, START)) == [
        RestartAfter(0.0)
    ]


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
    policy = RestartPolicy(max_restarts=20, give_up_after=3)
    status = errors.LogLimitError.exit_code
    assert exits(policy, (status, START)) == [
        GiveUp(f"worker 0 exited with status {status} (LogLimitError)")
    ]


def test_a_place_that_was_taken_by_one_that_has_ended_is_started_again() -> None:
    policy = RestartPolicy(max_restarts=20, give_up_after=2)
    fenced = errors.FencedError.exit_code
    decisions = [
        policy.after_exit("0", fenced, closed=False, progress=START, missed=missed)
        for missed in (False, True, True)
    ]
    assert decisions == [
        NoRestart("exited with status 75 (FencedError)"),
        RestartAfter(0.0),
        GiveUp(
            "worker 0 died 2 times while the job stood at -1.0"
            " (last: exited with status 75 (FencedError))"
        ),
    ]
