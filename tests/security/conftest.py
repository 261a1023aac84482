from collections.abc import Iterator

import pytest

from tests.security.tracker_under_attack import DOORS, Door, Fortress


@pytest.fixture(scope="session")
def fortress(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fortress]:
    fortress = Fortress(tmp_path_factory.mktemp("fortress"))
    yield fortress
    fortress.close()


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest, fortress: Fortress) -> Iterator[Door]:
    """Each door in turn; behind it nothing may have changed afterwards."""
    if request.param not in fortress.doors:
        pytest.skip("abstract Unix addresses: Linux alone has them")
    yield fortress.doors[request.param]
    fortress.must_be_unharmed(request.param)
