from collections.abc import Iterator

import pytest

from tests.conformance.bench import Bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("process"))
    yield bench
    bench.close()
