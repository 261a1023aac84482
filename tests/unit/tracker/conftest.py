"""Fixtures of the tracker's tests."""

import logging
from collections.abc import Iterator

import pytest

from tests.unit.tracker.fake_children import FakeWorkers


@pytest.fixture(autouse=True)
def quiet_logger() -> Iterator[None]:
    """The command line attaches handlers for a process's lifetime; tests share one process."""
    logger = logging.getLogger("ftcomm_tracker")
    handlers, level = logger.handlers, logger.level
    yield
    logger.handlers = handlers
    logger.setLevel(level)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> FakeWorkers:
    """The command line of the launcher, without processes."""
    return FakeWorkers(monkeypatch, capfd)
