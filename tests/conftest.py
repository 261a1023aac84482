"""What all tests share: no litter, library code that is compiled once, and a queue beside them."""

import os
import tempfile
from collections.abc import Iterator

import pytest

from tests.background import Background, Command

BACKGROUND = pytest.StashKey[Background]()

# Hundreds of processes are started; each would compile the library again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


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
