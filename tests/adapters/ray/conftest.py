"""A cluster of Ray on this machine, for all tests of this folder."""

import tempfile
from collections.abc import Iterator

import pytest

from tests.conformance.plans import worker_environment

CPUS = 3


@pytest.fixture(scope="session", autouse=True)
def settings() -> Iterator[None]:
    """For every cluster of these tests."""
    # Names of its sockets hold this folder, and a socket's name has 107 bytes at most.
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_AUTH_MODE", "disabled")  # or it keeps a token in the user's home
        yield


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Of one node with `CPUS` processors, whatever the machine has."""
    ray = pytest.importorskip("ray")
    variables = {"PYTHONPATH": worker_environment()["PYTHONPATH"]}
    ray.init(
        num_cpus=CPUS, include_dashboard=False, log_to_driver=False,
        runtime_env={"env_vars": variables},
    )  # fmt: skip
    yield
    ray.shutdown()
