"""Fixtures of the tracker's tests."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet_logger() -> Iterator[None]:
    """The command line attaches handlers for a process's life; tests share one process."""
    logger = logging.getLogger("ftcomm_tracker")
    handlers, level = logger.handlers, logger.level
    yield
    logger.handlers = handlers
    logger.setLevel(level)


@pytest.fixture(autouse=True, scope="session")
def litter_stays_with_pytest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A failed job keeps the state directory that it made up; here pytest clears it away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("state")))
        yield
