"""The standard streams of a worker under a launcher."""

import io
import os
import sys
from collections.abc import Iterator

import pytest

from ftcomm.config.environment import with_prompt_output
from ftcomm.diagnostics.output_buffering import write_whole_lines


@pytest.fixture
def unbuffered() -> Iterator[tuple[io.TextIOWrapper, int]]:
    """Standard output as PYTHONUNBUFFERED makes it, and the other end of its pipe."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with io.TextIOWrapper(io.FileIO(writer, "w"), write_through=True) as stream:
        yield stream, reader
    os.close(reader)


def join(stream: io.TextIOWrapper, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call the part of `init` under test; standard error is not Python's own here and stays."""
    with monkeypatch.context() as patch:  # pytest sets the streams between two phases of a test
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", io.StringIO())
        patch.setenv("PYTHONUNBUFFERED", asked)
        write_whole_lines()


def arriving(reader: int) -> bytes:
    try:
        return os.read(reader, 100)
    except BlockingIOError:
        return b""


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        ("lines", [b"", b"text\n", b"", b"50\r50%", b"", b"rest"]),
        ("1", [b"text", b"\n", b"50", b"\r50%", b"rest", b""]),
    ],
)
def test_lines_are_passed_on_whole_if_the_launcher_asks(
    asked: str,
    seen: list[bytes],
    unbuffered: tuple[io.TextIOWrapper, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, reader = unbuffered
    join(stream, asked, monkeypatch)
    found = []
    for text in ("text", "\n", "50", "\r50%", "rest"):
        stream.write(text)
        found.append(arriving(reader))
    stream.flush()
    found.append(arriving(reader))
    assert found == seen


def test_a_stream_that_the_script_has_set_up_stays(
    unbuffered: tuple[io.TextIOWrapper, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, reader = unbuffered
    stream.reconfigure(write_through=False)
    join(stream, "lines", monkeypatch)
    stream.write("a line\n")
    assert (arriving(reader), stream.line_buffering) == (b"", False)


def test_unbuffered_streams_that_the_user_asked_for_stay() -> None:
    asked = {"PYTHONUNBUFFERED": "1"}
    set_here = {"PYTHONUNBUFFERED": "lines"}
    assert (with_prompt_output({}), with_prompt_output(asked)) == (set_here, asked)
    assert with_prompt_output(set_here) == set_here  # of a worker that is a launcher too
