"""A port that is chosen now for a process that is started later."""

import socket
from pathlib import Path

import pytest

from tests.helpers import unused_port as module
from tests.helpers.unused_port import unused_port

HOST = "127.0.0.1"


def test_it_is_none_that_the_kernel_gives_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "range"
    held.write_text("10002\t65534\n")
    monkeypatch.setattr(module, "_RANGE_FILE", held)
    assert {unused_port(HOST) for _ in range(100)} <= {10_000, 10_001, 65_535}


def test_a_range_that_is_hidden_is_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RANGE_FILE", tmp_path / "none")
    assert not any(32_768 <= unused_port(HOST) <= 60_999 for _ in range(100))


def test_one_on_which_somebody_listens_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST", module.LAST - 1)  # so that one follows the first
    first = unused_port(HOST)
    (tmp_path / "range").write_text(f"10000 {first - 1}")
    monkeypatch.setattr(module, "_RANGE_FILE", tmp_path / "range")
    monkeypatch.setattr(module, "LAST", first + 1)
    with socket.create_server((HOST, first)):
        assert unused_port(HOST) == first + 1
    monkeypatch.setattr(module, "LAST", first)
    with socket.create_server((HOST, first)), pytest.raises(OSError, match="are in use"):
        unused_port(HOST)
