"""State of a job from its output, and notes of processes in the pipe."""

from dataclasses import replace
from pathlib import Path

import pytest

from ftcomm.diagnostics.fault_record import FaultRecord
from ftcomm_chaos.runner.output_parser import TAIL_LINES, ParsedOutput
from ftcomm_chaos.runner.process_announcements import (
    Announcements,
    Fired,
    ProcessStarted,
    parse_note,
)

OUTPUT = """\
ftcomm: job 20261121-185746-3a0f62 at 127.0.0.1:33721, state in /there
ftcomm: epoch 1: the group is complete
ftcomm: epoch 1 runs: frontier -1.0 (rank 0 stands at -1.0)
[0] ftcomm: epoch 7: a script that says what we say
ftcomm: epoch 2: lost worker 2: its connection ended (rank 2)
ftcomm: worker 2 was killed by SIGKILL: starting it again
ftcomm: epoch 3: lost worker 1: its connection ended (rank 1)
ftcomm: not recovered, epoch 2: lost worker 2; 851.3 ms until it was cut short
ftcomm: epoch 3 runs: frontier 29.0 (rank 0 stands at 29.0)
ftcomm: recovered, epoch 3: lost worker 1; 1.3 ms
ftcomm: worker 1 exited with status 79 (EvictedError): starting it again
ftcomm: worker 0 has closed
ftcomm: all ranks have closed at version 60
"""


def test_the_state_follows_the_output_line_by_line() -> None:
    output = ParsedOutput()
    states = []
    for line in OUTPUT.splitlines():
        output.hear(line)
        states.append((output.formed, output.epoch, output.is_quiescent))
    before, forming, runs = (False, 0, False), (False, 1, False), (True, 1, True)
    second, third, is_quiescent = (True, 2, False), (True, 3, False), (True, 3, True)
    assert states == [
        *(before, forming, runs, runs, second, second, third, third, third),
        *[is_quiescent] * 4,
    ]
    assert output.ended == {
        "2": ["was killed by SIGKILL"],
        "1": ["exited with status 79 (EvictedError)"],
    }
    assert (output.closed, output.all_closed, len(output.tail)) == ({"0"}, True, 13)


def test_who_closes_last_is_not_named_and_has_closed_all_the_same() -> None:
    output, closed = ParsedOutput(), []
    for line in OUTPUT.splitlines()[-3:]:
        output.hear(line)
        closed.append([worker for worker in "012" if output.has_closed(worker)])
    assert closed == [[], ["0"], ["0", "1", "2"]]


def test_a_fault_whose_recovery_has_not_begun_is_awaited() -> None:
    output = ParsedOutput(formed=True, epoch=1)
    output.expect("2", 1)
    assert not output.is_quiescent
    output.hear("ftcomm: epoch 2: lost worker 2")
    output.hear("ftcomm: recovered, epoch 2: lost worker 2; 3 ms")
    assert output.is_quiescent


def test_a_fault_is_awaited_while_the_recovery_from_another_goes_on() -> None:
    output = ParsedOutput(formed=True, epoch=1)
    output.expect("2", 1)
    output.hear("ftcomm: epoch 2: lost worker 0: its connection ended (rank 0)")
    output.hear("ftcomm: worker 0 was killed by SIGKILL: starting it again")
    output.hear("ftcomm: recovered, epoch 2: lost worker 0; 3 ms")
    assert not output.is_quiescent


@pytest.mark.parametrize(
    "line",
    [
        "ftcomm: epoch 2, not yet planned: lost worker 2: its connection ended (rank 2)",
        "ftcomm: epoch 3: worker 2 was replaced",
        "ftcomm: epoch 3: workers 0, 2 did not come back to the tracker",
        "ftcomm: worker 2 was killed by SIGKILL: starting it again",
    ],
)
def test_whoever_is_named_or_whose_end_is_told_is_recovered_from_with_the_others(
    line: str,
) -> None:
    output = ParsedOutput(formed=True, epoch=2, recovering=True)
    output.expect("2", 1)
    output.hear(line)
    output.hear("ftcomm: recovered, epoch 3: lost worker 0; 3 ms")
    assert output.is_quiescent


def test_a_recovery_that_failed_is_none() -> None:
    output = ParsedOutput(formed=True, epoch=2, recovering=True)
    output.hear("ftcomm: not recovered, epoch 2: lost worker 2; 3 ms until it was cut short")
    assert not output.is_quiescent


def test_who_died_before_the_group_was_complete_is_recovered_from_by_then() -> None:
    output = ParsedOutput()
    output.expect("2", 1)
    output.hear("ftcomm: worker 2 was killed by SIGKILL: starting it again")
    output.hear("ftcomm: epoch 1: the group is complete")
    output.hear("ftcomm: epoch 1 runs: frontier -1.0 (rank 0 stands at -1.0)")
    assert output.is_quiescent


def test_who_dies_while_the_word_of_the_first_group_is_on_its_way_is_awaited() -> None:
    output = ParsedOutput()
    output.hear("ftcomm: worker 2 was killed by SIGKILL: starting it again")
    output.expect("2", 2)
    output.hear("ftcomm: epoch 1: the group is complete")
    output.hear("ftcomm: epoch 1 runs: frontier -1.0 (rank 0 stands at -1.0)")
    assert output.formed
    assert not output.is_quiescent
    output.hear("ftcomm: epoch 2: lost worker 2: its connection ended (rank 2)")
    output.hear("ftcomm: worker 2 was killed by SIGKILL: starting it again")
    assert not output.is_quiescent
    output.hear("ftcomm: recovered, epoch 2: lost worker 2; 3 ms")
    assert output.is_quiescent


def test_a_later_attempt_begins_with_a_group_that_is_not_complete() -> None:
    output = ParsedOutput(formed=True, epoch=7, closed={"1"}, expecting={"0": 1})
    output.hear("ftcomm: /tmp/store: attempt 3 begins from checkpoint 12, written 4 s ago")
    assert (output.later_attempts, output.formed, output.is_quiescent, output.closed) == (
        [(3, "checkpoint 12")],
        False,
        False,
        set(),
    )
    output.hear("ftcomm: epoch 1 runs: frontier 12.0 (rank 0 stands at -1.0)")
    assert (output.formed, output.is_quiescent, output.epoch) == (True, True, 1)


def test_another_checkpoint_than_in_the_attempt_before_is_a_violation() -> None:
    """The job warns and goes on, since a user may have edited the script: here nobody has."""
    output = ParsedOutput()
    words = "checkpoint 6 has other values than in attempt 1, which went on from checkpoint 5 too"
    output.hear(f"2026-11-28 20:13:17.134 WARNING ftcomm: {words}; the usual cause")
    output.hear(f"0: {words}")  # a worker may print what it likes
    assert output.other_values == [f"{words}; the usual cause"]


def test_a_tracker_without_its_journal_takes_the_job_up() -> None:
    output = ParsedOutput(formed=True, epoch=2, recovering=True)
    output.hear("ftcomm: worker 0 has said what it knows; missing: worker 1, 2")
    assert not output.is_quiescent
    output.hear("ftcomm: job 20261123-17 goes on in generation 3 from what its workers know")
    assert (output.rebuilds, output.is_quiescent) == (1, True)


def test_a_spare_has_the_rank_that_it_took_and_who_lost_it_has_none() -> None:
    output = ParsedOutput()
    before = [output.has_rank(worker) for worker in ("0", "1", "spare-0")]
    output.hear("ftcomm: spare spare-0 takes the place of rank 1")
    after = [output.has_rank(worker) for worker in ("0", "1", "spare-0")]
    output.hear("ftcomm: spare 1 takes the place of rank 0")
    then = [output.has_rank(worker) for worker in ("0", "1", "spare-0")]
    assert (before, after, then) == (
        [True, True, False],
        [True, False, True],
        [False, True, True],
    )
    output.begin_again()
    assert [output.has_rank(worker) for worker in ("0", "1", "spare-0")] == before


def test_the_last_error_of_the_launcher_is_kept() -> None:
    output = ParsedOutput()
    for level, text in (
        ("ERROR", "ftcomm: not this one"),
        ("ERROR", "ftcomm: CollectiveMismatchError: state differs"),
        ("WARNING", "ftcomm: worker 2 exited with status 72"),
    ):
        output.hear(f"2026-11-28 20:13:17.134 {level} {text}")
    output.hear("[0] 2026-11-28 20:13:17.134 ERROR ftcomm: a script that says what we say")
    assert output.error == "CollectiveMismatchError: state differs"


def test_the_tail_is_bounded() -> None:
    output = ParsedOutput()
    for number in range(3 * TAIL_LINES):
        output.hear(str(number))
    assert (len(output.tail), output.tail[-1]) == (TAIL_LINES, str(3 * TAIL_LINES - 1))


def test_no_pipe_is_left_in_which_a_reader_would_wait(tmp_path: Path) -> None:
    notes = Announcements(tmp_path)
    assert notes.path.is_fifo()
    notes.close()
    assert list(tmp_path.iterdir()) == []


def test_notes_tell_of_starts_and_of_faults_at_positions() -> None:
    record = FaultRecord("", 77, 9876, 77, 2, 5, 3.25)
    words = "pid=77 start=9876 group=77 incarnation=2 epoch=5 at=3.25"
    stat = "77 (sh) (x) y) S 1 77 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 9876 2 3"
    assert [
        parse_note(line)
        for line in (
            f"started 3 {stat}",
            f"2.1.0.0@half_sent=kill {words}",
            f"tracker 1.2@plan_sent#1 {words}",
        )
    ] == [
        ProcessStarted("3", 77, 9876),
        Fired(replace(record, fault="2.1.0.0@half_sent=kill")),
        Fired(replace(record, fault="1.2@plan_sent#1")),
    ]
