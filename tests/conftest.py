"""What all tests share: no litter, compiled code, a queue beside them, a count of real faults."""

import os
import tempfile
from collections.abc import Callable, Iterator

import pytest

from tests.background import Background, Command
from tests.conformance.sums import Sums
from tests.conformance.tally import TALLY

BACKGROUND = pytest.StashKey[Background]()

# Hundreds of processes are started; each would compile the library again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Sums(config), "real faults")


def _command(item: pytest.Item) -> Command:
    """What runs beside the other tests for this one, empty for nothing."""
    marker = item.get_closest_marker("background")
    return () if marker is None else marker.args


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _command(item) != ())


def pytest_collection_finish(session: pytest.Session) -> None:
    commands = [command for item in session.items if (command := _command(item))]
    if commands and not session.config.option.collectonly:
        session.config.stash[BACKGROUND] = Background(commands)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if BACKGROUND in session.config.stash:
        session.config.stash[BACKGROUND].stop()


@pytest.fixture
def background(request: pytest.FixtureRequest) -> tuple[int, str]:
    """Exit status and output of the test's own command, once it has ended."""
    return request.config.stash[BACKGROUND].result(_command(request.node))


@pytest.fixture(autouse=True, scope="session")
def litter_stays_with_pytest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A job keeps the state directory that it made up if anything befell it; pytest clears up."""
    folder = str(tmp_path_factory.mktemp("state"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True)
def _count(record_property: Callable[[str, object], None]) -> Iterator[None]:
    kills, stops = TALLY.kills, TALLY.stops
    yield
    record_property("kills", TALLY.kills - kills)
    record_property("stops", TALLY.stops - stops)
