"""The largest searches take the second core while other tests wait for their processes.

They are started when the collection is known, and their tests come last.
"""

import os
import subprocess
import sys

import pytest

Job = tuple[str, int, int]
NICE = 10  # the tests with real processes come first


class Searches:
    """Explorers in processes of their own; none outlives the session."""

    def __init__(self) -> None:
        self._running: dict[Job, subprocess.Popen[str]] = {}

    def start(self, job: Job) -> None:
        """Begin one search."""
        if job not in self._running:
            command = [sys.executable, "-m", "ftcomm_chaos.cli", "explore", *map(str, job)]
            self._running[job] = subprocess.Popen(
                ["nice", "-n", str(NICE), *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )

    def result(self, job: Job) -> tuple[int, str]:
        """Exit status and output, once it has ended."""
        process = self._running[job]
        output, _ = process.communicate()
        return process.returncode, output

    def stop(self) -> None:
        """End what is still searching."""
        for process in self._running.values():
            if process.returncode is None:
                process.kill()
                process.communicate()


SEARCHES = pytest.StashKey[Searches]()


def _job(item: pytest.Item) -> Job | None:
    marker = item.get_closest_marker("background")
    return None if marker is None else item.callspec.params["job"]  # type: ignore[attr-defined]  # parametrized


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _job(item) is not None)


def pytest_collection_finish(session: pytest.Session) -> None:
    searches = session.config.stash[SEARCHES] = Searches()
    if session.config.option.collectonly:
        return
    for item in session.items:
        job = _job(item)
        if job is not None:
            searches.start(job)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if SEARCHES in session.config.stash:
        session.config.stash[SEARCHES].stop()


@pytest.fixture
def searches(request: pytest.FixtureRequest) -> Searches:
    return request.config.stash[SEARCHES]
