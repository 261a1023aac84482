"""One worker process, watched."""

import errno
import os
import resource
import signal
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from ftcomm.config.environment import process_environment
from ftcomm.config.process_identity import read_proc_stat, start_of
from ftcomm_tracker.launcher import log_lines
from ftcomm_tracker.launcher.processes import child_process
from ftcomm_tracker.launcher.processes.child_process import Child, start_child
from ftcomm_tracker.launcher.processes.remaining import leave_remaining
from ftcomm_tracker.launcher.worker_output import forward_output

pytestmark = [pytest.mark.process, pytest.mark.trio]

SPIN = "print('go', flush=True)\nwhile True: pass"


def python(script: str) -> Child:
    return start_child("0", [sys.executable, "-c", script], process_environment())


async def end_of(child: Child) -> int:
    status = await child.wait()
    child.end()
    assert child.process.returncode == status
    return status


async def lines_of(child: Child) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []

    async def show(number: int, data: bytes) -> None:
        found.extend((number, line) for line in data[:-1].split(b"\n"))

    await forward_output(child, show)
    return found


async def test_a_worker_that_spins_is_computing_and_a_stopped_one_is_not() -> None:
    child = python(SPIN)
    try:
        while not child.is_computing():
            await trio.lowlevel.checkpoint()
        while not child.is_computing():  # it goes on: more ticks since the last look
            await trio.lowlevel.checkpoint()
        child.signal_group(signal.SIGSTOP)
        while (look := read_proc_stat(child.process.pid)) is None or look.state != "T":
            await trio.lowlevel.checkpoint()
        assert [child.is_computing() for _ in range(3)] == [False] * 3
        assert child.stopped
    finally:
        child.signal_group(signal.SIGKILL)
        assert await end_of(child) == -signal.SIGKILL
        await lines_of(child)
    assert not child.is_computing()


async def test_the_worker_of_a_start_script_is_the_process_that_joined() -> None:
    """Its computing, its stops, its signals and its end are not those of the shell."""
    spin = (
        "import os, signal; signal.signal(signal.SIGUSR1, lambda *_: os._exit(5));"
        " print(os.getpid(), flush=True)\nwhile True: pass"
    )
    script = '"$@"; echo ended with $?; sleep 1000'
    child = start_child(
        "0", ["sh", "-c", script, "sh", sys.executable, "-c", spin], process_environment()
    )
    try:
        pid = int(await first_line(child))
        child.note_joined(pid, (start_of(pid) or 0) + 1)
        assert child.joined is None, "another process has the number"
        child.note_joined(pid, start_of(pid) or 0)
        while not child.is_computing():
            await trio.lowlevel.checkpoint()
        child.signal(signal.SIGSTOP)
        while not child.stopped:
            child.is_computing()
            await trio.lowlevel.checkpoint()
        child.signal(signal.SIGCONT)
        child.signal(signal.SIGUSR1)
        assert await first_line(child) == "ended with 5"
        assert (child.pid, child.has_lost_worker) == (child.process.pid, True)
    finally:
        child.signal_group(signal.SIGKILL)
        assert await end_of(child) == -signal.SIGKILL
        await lines_of(child)


async def test_what_a_start_script_leaves_after_ctrl_c_keeps_its_time(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    child = python(
        "import os, signal\n"
        "if os.fork():\n"
        "    signal.pause()\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print('saving', flush=True)\n"
        f"open({str(fifo)!r}).read()"
    )
    ends: list[str] = []

    async def has_closed() -> bool:
        return False

    async def leave() -> None:
        await leave_remaining(child, await child.wait(), 0.0, has_closed, ends.append)
        ends.append("gone")

    try:
        assert await first_line(child) == "saving"
        child.signal_group(signal.SIGINT)
        await child.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)
            await trio.testing.wait_all_tasks_blocked()
            assert ends == []
            fifo.write_text("")
        assert ends == ["gone"]
    finally:
        child.end()
        await lines_of(child)


async def first_line(child: Child) -> str:
    assert child.process.stdout is not None
    return (await trio.to_thread.run_sync(child.process.stdout.readline)).decode().strip()


async def test_a_long_line_comes_in_pieces_and_the_tail_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_lines, "MAX_LINE_BYTES", 1000)
    child = python("for i in range(30): print(i)\nprint('x' * 200_000, end='')")
    found = await lines_of(child)
    await end_of(child)
    assert b"".join(line for _, line in found).endswith(b"x" * 200_000)
    assert found[:30] == [(1, b"%d" % i) for i in range(30)]
    assert len(child.tail) <= child_process.TAIL_LINES


async def test_a_script_without_a_handler_ignores_the_users_signals() -> None:
    child = python(
        "import signal\nfor name in ('SIGUSR1', 'SIGUSR2', 'SIGTERM', 'SIGPIPE'):"
        " print(signal.getsignal(getattr(signal, name)) == signal.SIG_IGN)"
    )
    found = [line for _, line in await lines_of(child)]
    await end_of(child)
    assert found == [b"True", b"True", b"False", b"True"]  # Python itself ignores SIGPIPE


async def test_a_worker_leads_a_group_in_its_launchers_session() -> None:
    """Of the scheduler one session is a unit: `sched_yield` reaches no peer in another one."""
    child = python("import os; print(os.getsid(0), os.getpgrp() == os.getpid())")
    found = await lines_of(child)
    await end_of(child)
    assert found == [(1, b"%d True" % os.getsid(0))]


async def test_output_is_read_where_no_descriptor_is_left() -> None:
    child = python("print('first', flush=True)\nprint('last')")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        found = await lines_of(child)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert await end_of(child) == 0
    assert found == [(1, b"first"), (1, b"last")]


async def test_a_shortage_of_descriptors_is_no_error_of_the_command() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files") as caught:
            python("pass")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caught.value.errno == errno.EMFILE


async def test_an_exit_is_seen_without_a_pidfd_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_call(pid: int) -> int:
        raise OSError("no such call")

    monkeypatch.setattr(os, "pidfd_open", no_call)
    child = python("raise SystemExit(7)")
    assert await end_of(child) == 7
    await lines_of(child)


async def test_who_waits_without_a_pidfd_keeps_no_thread_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trio lends 40 threads, and a job may have more workers."""

    def no_call(pid: int) -> int:
        raise OSError("no such call")

    monkeypatch.setattr(os, "pidfd_open", no_call)
    child = python("import signal; signal.pause()")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_of, child)
        await trio.testing.wait_all_tasks_blocked()
        borrowed = trio.to_thread.current_default_thread_limiter().borrowed_tokens
        child.signal_group(signal.SIGKILL)
    await lines_of(child)
    assert borrowed == 0


async def test_a_command_with_spaces_and_parentheses_can_be_read_in_proc() -> None:
    child = python(
        "import ctypes, signal\nctypes.CDLL(None).prctl(15, b'a) R (b')\nprint()\nsignal.pause()"
    )
    try:
        with trio.fail_after(30):
            while (look := read_proc_stat(child.process.pid)) is None or look.state != "S":
                await trio.lowlevel.checkpoint()
    finally:
        child.signal_group(signal.SIGKILL)
        await end_of(child)
        await lines_of(child)
    assert read_proc_stat(child.process.pid) is None
