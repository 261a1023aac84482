"""Processes of a session: their roles, their peaks, and those that are left."""

import os
import subprocess
import sys

from tests.soak.watching import (
    LASTING_SAMPLES,
    ProcessSeen,
    Watch,
    all_processes,
    descendants,
    left_behind,
    parse_stat,
    role_of,
)

STAT = "42 (a) b (c)) Z 7 42 42 0 -1 4 0 0 0 0 3 4 0 0 20 0 1 0 98765 0 0"


def test_a_line_of_the_kernel_is_read_behind_any_name() -> None:
    seen = parse_stat(42, STAT, b"python\0-m\0x\0")
    assert seen == ProcessSeen(42, 7, 98765, True, ("python", "-m", "x"))


def test_trackers_and_workers_are_known_by_their_commands() -> None:
    worker = ["python", "-m", "tests.soak.training", "9", "0.1"]
    launcher = ["python", "-m", "ftcomm_tracker", "run", "-n", "3", "--", *worker]
    others = ["python", "-m", "ftcomm_tracker", "supervise", "--", *worker]
    roles = [role_of(each) for each in (worker, launcher, others, ["sh", "-c", "true"], [])]
    assert roles == ["worker", "tracker", "", "", ""]


def test_descendants_are_children_and_theirs() -> None:
    family = [ProcessSeen(pid, parent, 0, False) for pid, parent in [(2, 1), (3, 2), (4, 9)]]
    assert [process.pid for process in descendants(1, family)] == [2, 3]


def test_the_peak_of_a_role_is_the_median_over_its_processes() -> None:
    watch = Watch()
    for incarnation, value in [(1, 5), (1, 9), (2, 7), (3, 8), (3, 1)]:
        watch.take("worker", incarnation, {"fds": value}, 0.0)
    assert (watch.peaks(), watch.growths()) == ({"worker fds": 8}, {})


def test_the_process_that_grows_most_is_told_if_it_lives_for_long() -> None:
    watch = Watch()
    for sample in range(LASTING_SAMPLES):
        watch.take("worker", 1, {"fds": 10}, sample)
        watch.take("worker", 2, {"fds": sample // 13}, sample)
        if sample:  # too short
            watch.take("worker", 3, {"fds": 10 * sample}, sample)
    assert watch.growths() == {"worker fds": 1.0}


def test_a_process_that_does_not_end_is_left_behind() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        here = {seen.pid for seen in descendants(os.getpid(), all_processes())}
        assert process.pid in here
        left = left_behind(last_gasp_s=0.0)
        process.kill()
    assert process.pid in {seen.pid for seen in left}
    assert process.pid not in {seen.pid for seen in left_behind()}
