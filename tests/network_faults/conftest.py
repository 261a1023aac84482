import pytest

from tests.network_faults.jobs import Reference, peace


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The model of a job of n workers without faults, made once."""
    models: dict[int, str] = {}

    async def model(n: int) -> str:
        if n not in models:
            models[n] = await peace(tmp_path_factory.mktemp("peace"), n)
        return models[n]

    return model
