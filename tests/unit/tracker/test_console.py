"""Output of the launcher: formats of lines, progress bars, files, readers that do not read."""

import errno
import json
import logging
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio
import trio.testing

from ftcomm_tracker.launcher.console import MAX_QUEUED_BYTES, Console, write_all
from ftcomm_tracker.launcher.console_session import LogOptions, with_console
from ftcomm_tracker.launcher.live_area import LiveArea
from ftcomm_tracker.launcher.log_files import LogFiles
from ftcomm_tracker.launcher.log_lines import MAX_LINE_BYTES, LineFormat, LineSplitter
from tests.unit.tracker.fake_children import FakeChild, FakeWorkers
from tests.unit.tracker.serving import serve
from tests.unit.tracker.test_launcher import environment

TEXT = LineFormat(as_json=False, clock=lambda: 1_700_000_000.25)
JSON = LineFormat(as_json=True, clock=lambda: 1_700_000_000.25)
STAMP = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (INFO|NOTICE|WARNING|ERROR) ftcomm: "


def test_an_own_line_says_when_and_how_grave() -> None:
    stamp = datetime.fromtimestamp(1_700_000_000.25, tz=UTC).astimezone()
    head = f"{stamp:%Y-%m-%d %H:%M:%S}.250 WARNING ftcomm:"
    assert TEXT.own("WARNING", "one\ntwo").decode() == f"{head} one\n{head} two\n"
    assert json.loads(JSON.own("WARNING", "one\ntwo")) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "warning",
        "message": "one\ntwo",
    }


def test_workers_lines_keep_their_bytes_and_what_was_overwritten_goes() -> None:
    data = b"a\n\n 10%\r 90%\r\n\xff\n"
    assert TEXT.of_worker("w", 1, data) == b"[w] a\n[w] \n[w]  90%\n[w] \xff\n"
    assert TEXT.in_own_file("w", 1, data) == b"a\n\n 90%\n\xff\n"
    found = [json.loads(line) for line in JSON.of_worker("w", 2, data).splitlines()]
    assert [(line["worker"], line["stream"], line["line"]) for line in found] == [
        ("w", "stderr", text) for text in ("a", "", " 90%", "�")
    ]


def test_a_stream_is_cut_into_lines() -> None:
    splitter = LineSplitter()
    fed = [
        (splitter.split(data), splitter.unfinished(prompts=False))
        for data in (b"a\nb", b"c", b"\nd\r", b"\r10%", b"\r20", b"%\r", b"\ne\r\nf", b"\n\n")
    ]
    assert fed == [
        (b"a\n", b""),
        (b"", b""),
        (b"bc\n", b"d"),
        (b"", b"10%"),
        (b"", b"20"),
        (b"", b"20%"),
        (b"\r20%\r\ne\r\n", b""),
        (b"f\n\n", b""),
    ]
    assert [splitter.split(b"x" * (MAX_LINE_BYTES + 1)), splitter.end()] == [
        b"x" * (MAX_LINE_BYTES + 1) + b"\n",
        b"",
    ]


def test_bars_and_the_status_line_are_drawn_below_all_else() -> None:
    area = LiveArea(lambda: 12)
    area.set_status("status line that is long")
    shown = [area.draw()]
    area.set_bar("0 2", "[0] ", b"\x1b[A10%")
    area.set_bar("1 2", "[1] ", b"50%")
    shown += [area.erase(), area.draw()]
    area.set_bar("0 2", "[0] ", b"")
    shown += [area.erase(), area.draw()]
    area.end()
    shown += [area.erase(), area.draw(), area.erase()]
    assert shown == [
        b"\r\x1b[Kstatus line",
        b"\r\x1b[K",
        b"\r\x1b[K[0] 10%\n[1] 50%\nstatus line",
        b"\r\x1b[2A\x1b[J",
        b"\r\x1b[K[1] 50%\nstatus line",
        b"\r\x1b[1A\x1b[J",
        b"",
        b"",
    ]


def test_a_bar_that_goes_while_all_are_drawn_is_drawn_once_more() -> None:
    """As when the main thread removes it between two steps of the thread that draws."""

    class Name(str):
        __slots__ = ()

        def __lt__(self, other: str) -> bool:
            area.set_bar("1 2", "[1] ", b"")
            return super().__lt__(other)

    area = LiveArea(lambda: 12)
    for name in ("0 2", "1 2"):
        area.set_bar(Name(name), f"[{name[0]}] ", b"10%")
    shown = [area.draw(), area.draw()]
    assert shown == [b"\r\x1b[K[0] 10%\n[1] 10%", b"\r\x1b[K[0] 10%"]


class Terminal:
    """Takes what is written while it is open to it."""

    def __init__(self) -> None:
        self.written: list[tuple[int, bytes]] = []
        self.error = 0

    def write(self, number: int, data: bytes | memoryview) -> None:
        if self.error and number == 1:
            raise OSError(self.error, os.strerror(self.error))
        self.written.append((number, bytes(data)))


@pytest.mark.trio
@pytest.mark.parametrize(("error", "unwritten"), [(errno.EPIPE, False), (errno.ENOSPC, True)])
async def test_output_that_is_lost_is_said_unless_its_reader_has_left(
    error: int, unwritten: bool
) -> None:
    terminal = Terminal()
    terminal.error = error
    console = Console(TEXT, write=terminal.write)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(console.run)
        for _ in range(2):
            await console.show("0", 1, b"line\n")
        console.close()
    lost = b"standard output cannot be written: No space left on device"
    assert console.unwritten == unwritten
    assert [lost in data for _, data in terminal.written] == [True] * unwritten


@pytest.mark.trio
async def test_a_reader_that_takes_nothing_holds_nobody_up_for_ever() -> None:
    """The console's writer is not running at first, as if it were stuck in a write."""
    terminal = Terminal()
    console = Console(TEXT, write=terminal.write, patience_s=0.0)
    line = b"x" * (MAX_QUEUED_BYTES + 1) + b"\n"
    await console.show("0", 1, line)
    for _ in range(2):
        await console.show("0", 1, b"lost\n")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(console.run)
        await trio.testing.wait_all_tasks_blocked()
        while not any(b"dropped" in data for _, data in terminal.written):
            await trio.lowlevel.checkpoint()
        await console.show("0", 1, b"again\n")
        console.close()
    said = [data for number, data in terminal.written if number == 2]
    assert len(said) == 1
    assert b"10 bytes of workers' output were dropped: no process read it for 0 s" in said[0]
    printed = b"".join(data for number, data in terminal.written if number == 1)
    assert printed == b"[0] " + line + b"[0] again\n"


@pytest.mark.trio
async def test_a_slow_reader_gets_all_at_the_end_and_a_stuck_one_holds_nobody() -> None:
    """The writer that is not running stands for one that is stuck in a write."""
    terminal = Terminal()
    console = Console(TEXT, write=terminal.write)
    line = b"x" * (3 << 20) + b"\n"
    await console.show("0", 1, line)
    await console.finish(0.0)
    assert terminal.written == []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(console.run)
        await console.finish(60.0)
        nursery.cancel_scope.cancel()
    assert b"".join(data for _, data in terminal.written) == b"[0] " + line


def test_a_descriptor_that_somebody_made_non_blocking_loses_nothing() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data = os.urandom(1 << 20)
    program = "import sys; sys.exit(len(sys.stdin.buffer.read()) != 1 << 20)"
    with subprocess.Popen([sys.executable, "-c", program], stdin=reader) as process:
        os.close(reader)
        write_all(writer, data)
        os.close(writer)
    assert process.returncode == 0


@pytest.mark.trio
async def test_files_that_cannot_be_written_are_said_once(tmp_path: Path) -> None:
    terminal = Terminal()
    (tmp_path / "worker-0.log").symlink_to("/dev/full")
    files = LogFiles(tmp_path, "run", TEXT)
    console = Console(TEXT, write=terminal.write, files=files)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(console.run)
        for _ in range(2):
            await console.show("0", 1, b"line\n")
            await console.show("a/b", 1, b"line\n")
        console.close()
    assert (tmp_path / "worker-a%2Fb.log").read_text() == "line\nline\n"
    assert (tmp_path / "run.log").read_text().count("worker-0.log: No space left") == 1


@pytest.mark.trio
async def test_lines_that_other_threads_log_are_printed(
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logger = logging.getLogger("ftcomm_tracker")
    caplog.set_level("INFO", logger=logger.name)  # as before, once the test is over
    monkeypatch.setattr(logger, "handlers", [])

    async def work(console: Console) -> int:
        for text in ("one", "two"):
            await trio.testing.wait_all_tasks_blocked()  # the console's task too
            await trio.to_thread.run_sync(logger.warning, text)
        return 0

    status = await with_console(LogOptions(shown=logging.INFO), "run", work)
    lines = [line.partition(" WARNING ftcomm: ")[2] for line in capfd.readouterr().err.splitlines()]
    assert (status, lines) == (0, ["one", "two"])


async def prints(child: FakeChild) -> int:
    child.say("out\n", 1)
    child.say("err\n", 2)
    return 64


def test_a_jobs_lines_are_json_and_kept_in_files(workers: FakeWorkers, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    done = workers.run(prints, "--log-format", "json", "--log-dir", str(folder), n=1)
    out = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["worker"], line["stream"], line["line"]) for line in out] == [
        ("0", "stdout", "out")
    ]
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["level"] for line in said if "level" in line} == {"info", "notice", "error"}
    assert [line["line"] for line in said if "line" in line] == ["err"]
    kept = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(kept) == {"run.log", "worker-0.log"}
    own = [line for line in done.stderr.splitlines(keepends=True) if '"level"' in line]
    assert [_without_time(line) for line in kept["run.log"].splitlines()] == [
        _without_time(line) for line in own
    ]
    started, *lines = [json.loads(line) for line in kept["worker-0.log"].splitlines()]
    assert started["message"].startswith("worker 0 is process ")
    assert sorted(line["line"] for line in lines) == ["err", "out"]


def _without_time(line: str) -> tuple[str, str]:
    document = json.loads(line)
    return document["level"], document["message"]


def test_lines_of_run_have_a_time_and_a_level(workers: FakeWorkers) -> None:
    own = [line for line in workers.run(prints).stderr.splitlines() if line[0] != "["]
    pattern = re.compile(STAMP)
    assert (len(own) > 3, [line for line in own if not pattern.match(line)]) == (True, [])


@pytest.mark.process
def test_lines_of_serve_have_a_time_and_a_level(tmp_path: Path) -> None:
    with serve(tmp_path / "state", "-n", "1") as (process, _):
        process.terminate()
        said = process.communicate(timeout=30)[1].splitlines()
    pattern = re.compile(STAMP)
    assert [line for line in said if not pattern.match(line)] == []


@pytest.mark.process
def test_a_progress_bar_shows_on_a_terminal() -> None:
    script = "import signal\nprint('\\r 10%', end='', flush=True)\nsignal.pause()"
    leader, follower = os.openpty()
    command = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", "1", "--"]
    with subprocess.Popen(
        [*command, sys.executable, "-c", script],
        env=environment(),
        stdout=follower,
        stderr=follower,
    ) as launcher:
        os.close(follower)
        seen = b""
        while b"[0]  10%\r\nwaiting for workers, " not in seen:
            seen += os.read(leader, 4096)
        launcher.terminate()
        launcher.wait(timeout=30)
    os.close(leader)
