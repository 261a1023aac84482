from collections.abc import Iterator

import pytest

from tests.security.tracker_under_attack import DOORS, AttackedJob, Door


@pytest.fixture(scope="session")
def attacked_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedJob]:
    """One job that is attacked in every way, one after the other."""
    attacked_job = AttackedJob(tmp_path_factory.mktemp("attacked"))
    yield attacked_job
    try:
        attacked_job.must_end_well()
    finally:
        attacked_job.close()


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest, attacked_job: AttackedJob) -> Iterator[Door]:
    """Each door in turn; behind it nothing may have changed afterwards."""
    if request.param not in attacked_job.doors:
        pytest.skip("abstract Unix addresses: Linux alone has them")
    yield attacked_job.doors[request.param]
    attacked_job.must_be_unharmed(request.param)
