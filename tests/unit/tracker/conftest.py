"""Fixtures of the tracker's tests."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet_logger() -> Iterator[None]:
    """The command line attaches handlers for a process's lifetime; tests share one process."""
    logger = logging.getLogger("ftcomm_tracker")
    handlers, level = logger.handlers, logger.level
    yield
    logger.handlers = handlers
    logger.setLevel(level)
