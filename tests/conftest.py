"""Common fixtures: no leftovers, compiled code, an order, no clock, a count of real faults."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.conformance.counter import FAULT_COUNTER
from tests.conformance.sums import Sums

# Hundreds of processes are started; each would compile the library again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell starts what it runs in the background with SIGINT ignored, and processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On a busy machine any example may take long, and that says nothing about the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # of several processes, the one that hears of all tests
        config.pluginmanager.register(Sums(config), "real faults")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without real processes if those are asked for: each of three collects."""
    asked = str(config.getoption("markexpr")).startswith("process and ")
    is_tests = asked and collection_path.match("test_*.py")
    return (is_tests and "mark.process" not in collection_path.read_text("utf-8")) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long ones, so that others are left to run beside the last of them."""
    items.sort(key=lambda item: item.get_closest_marker("heavy") is None)


@pytest.fixture(autouse=True, scope="session")
def litter_stays_with_pytest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A job keeps the state directory that it made up if anything befell it; pytest clears up."""
    folder = str(tmp_path_factory.mktemp("state"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setenv("XDG_STATE_HOME", folder)  # where jobs are registered
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True)
def _count(record_property: Callable[[str, object], None]) -> Iterator[None]:
    kills, stops = FAULT_COUNTER.kills, FAULT_COUNTER.stops
    yield
    record_property("kills", FAULT_COUNTER.kills - kills)
    record_property("stops", FAULT_COUNTER.stops - stops)
