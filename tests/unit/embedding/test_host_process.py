"""The output of a launched job, as its caller's streams take it."""

import io
import os
import sys
from typing import Any

import pytest

from ftcomm_tracker.embedding.host_process import HostProcess

PRINT = "import sys; sys.stdout.buffer.write(bytes.fromhex('{}')); print(' and more')"


def printed(text: str) -> int:
    """Status of a host that prints `text`."""
    words = ["-c", PRINT.format(text.encode().hex())]
    with HostProcess(words, {**os.environ, "PYTHONUTF8": "1"}, 0.0) as host:
        return host.pass_on_output()


def test_what_the_callers_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    assert printed("\u00fc \u20ac") == 0
    assert written.getvalue() == b"\xfc \\u20ac and more\n"


class Full(io.StringIO):
    """A stream on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def closed() -> Any:
    stream = io.StringIO()
    stream.close()
    return stream


class Unread(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize(
    ("stream", "said"),
    [(Full(), "No space left on device"), (closed(), "closed file"), (Unread(), "")],
)
def test_a_job_goes_on_if_its_output_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, stream: Any, said: str
) -> None:
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", errors)
    assert printed("x" * 50_000) == 0
    shown = errors.getvalue()
    assert said in shown
    assert shown.count("workers' output is lost from here on") == bool(said)
