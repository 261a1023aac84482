"""Causes of workers' deaths: the tracker's record, and the reports to people and scripts."""

from dataclasses import replace
from pathlib import Path

import pytest

from ftcomm_tracker.core.events import Death, Died
from ftcomm_tracker.core.group_state import WorkerExits
from ftcomm_tracker.launcher.processes.oom_counter import RECENT_S, MemoryKills
from ftcomm_tracker.launcher.restart_policy import cause_of, is_killed
from tests.unit.tracker.harness import hello

KILLED = Died("1", 4711, "was killed by SIGKILL")
DEATH = Death("1", 4711, "host", "was killed by SIGKILL")


def test_a_death_is_kept_until_a_newer_process_has_the_place() -> None:
    deaths = WorkerExits()
    deaths.note(KILLED, "host", None)
    known = deaths.of("1")
    deaths.forget("1")
    assert (known, deaths.of("1"), deaths.of("0")) == (DEATH, None, None)


def test_a_death_that_is_told_twice_is_one() -> None:
    """As by a supervisor whose connection broke while it told it."""
    deaths = WorkerExits()
    deaths.note(KILLED, "host", None)
    deaths.note(KILLED, "host", None)
    first = deaths.of("1")
    deaths.forget("1")
    deaths.note(KILLED, "host", replace(hello("1"), group=4712))
    assert (first, deaths.of("1")) == (DEATH, None)


@pytest.mark.parametrize(("group", "kept"), [(4711, True), (4712, False)])
def test_a_death_that_is_told_late_is_not_the_newer_processs(group: int, kept: bool) -> None:
    """The connection may not have ended yet, or a newer process have made one."""
    deaths = WorkerExits()
    noted = deaths.note(KILLED, "host", replace(hello("1"), group=group))
    assert (noted, deaths.of("1") is not None) == (DEATH, kept)


@pytest.mark.parametrize(
    ("status", "tail", "memory", "cause"),
    [
        (-9, ["step 7"], "", "was killed by SIGKILL"),
        (
            -9,
            [],
            "memory.events of cgroup /job",
            "was killed by SIGKILL, out of memory (memory.events of cgroup /job)",
        ),
        (1, ["Traceback", "OSError: [Errno 24] Too many open files", ""], "",
         "exited with status 1: OSError: [Errno 24] Too many open files"),
        (1, [], "", "exited with status 1"),
        (137, ["2 Killed"], "counter", "exited with status 137, out of memory (counter): 2 Killed"),
    ],
)  # fmt: skip
def test_a_cause_is_the_exit_the_last_line_and_the_kernels_count(
    status: int, tail: list[str], memory: str, cause: str
) -> None:
    assert cause_of(status, tail, memory) == cause


@pytest.mark.parametrize(("status", "killed"), [(-9, True), (137, True), (-15, False), (9, False)])
def test_a_shell_tells_that_its_command_was_killed(status: int, killed: bool) -> None:
    """As of `bash train.sh`: it outlives the process that the kernel takes."""
    assert is_killed(status) == killed


def machine(root: Path, cgroup: str) -> MemoryKills:
    """A machine whose processes are all in this cgroup."""
    (root / "self").mkdir(parents=True)
    (root / "self" / "cgroup").write_text(cgroup)
    return MemoryKills(root, root)


@pytest.mark.parametrize(
    ("cgroup", "file", "where"),
    [
        ("0::/job/1\n", "job/1/memory.events", "memory.events of cgroup /job/1"),
        ("0::/\n", "memory.events", "memory.events of cgroup /"),
        (
            "9:cpu:/a\n4:memory:/job\n",
            "memory/job/memory.oom_control",
            "memory.oom_control of cgroup /job",
        ),
        ("0::/gone\n", "vmstat", "oom_kill of /proc/vmstat"),
    ],
)
def test_a_kill_for_want_of_memory_explains_one_recent_death(
    tmp_path: Path, cgroup: str, file: str, where: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("low 0\noom 3\noom_kill 2\n")
    kills = machine(tmp_path, cgroup)
    before = kills.take(1.0)
    path.write_text("low 0\noom 5\noom_kill 4\n")
    kills.look(2.0)
    assert [before, *(kills.take(2.5) for _ in range(3))] == ["", where, where, ""]
    path.write_text("low 0\noom 6\noom_kill 5\n")
    kills.look(10.0)
    assert kills.take(10.0 + RECENT_S) == ""


def test_where_the_kernel_counts_nothing_there_is_no_news(tmp_path: Path) -> None:
    assert MemoryKills(tmp_path, tmp_path).take(1.0) == ""
