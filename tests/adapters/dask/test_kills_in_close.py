"""A rank that is killed beside its close(): its result is kept, or named as lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("distributed")

import ftcomm
import ftcomm.dask
from tests.adapters.dask.clusters import Cluster
from tests.integration.launched import die_after_close, die_in_close

pytestmark = [pytest.mark.process, pytest.mark.heavy, pytest.mark.timeout(600)]

RANKS = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Its ranks do not wait long for a tracker that has ended with the job."""
    patience = {"FTCOMM_TRACKER_TIMEOUT": "5"}
    with Cluster(tmp_path_factory.mktemp("dask"), nannies=RANKS, config=patience) as cluster:
        yield cluster


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_in_close_loses_no_result(when: str, cluster: Cluster, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    found = ftcomm.dask.run(cluster.client, die_in_close, RANKS, (str(mark),), {"when": when})
    assert found == [3, 3]
    assert mark.exists()


def test_a_result_that_was_lost_behind_close_is_named(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ftcomm.RankLostError, match=r"worker 1 was lost behind its close"):
        ftcomm.dask.run(cluster.client, die_after_close, RANKS, (str(tmp_path / "mark"),))
