"""Ranks in Dask: whoever is lost, the results are those of a run without losses, to the bit."""

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

distributed = pytest.importorskip("distributed")

import ftcomm  # noqa: E402 - as Dask is there
import ftcomm.dask  # noqa: E402 - as Dask is there
from tests.adapters.dask.clusters import Cluster  # noqa: E402 - likewise
from tests.adapters.observed_ranks import Observer, train  # noqa: E402 - likewise

pytestmark = [pytest.mark.process, pytest.mark.heavy, pytest.mark.timeout(600)]

RANKS, STEPS = 3, 6
Results = list[tuple[int, bytes]]
OF_A_RANK = {"rank": "self", "worker": "parent", "nanny": "grandparent"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Of one worker more than there are ranks."""
    with Cluster(tmp_path_factory.mktemp("dask"), nannies=RANKS + 1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> Callable[[], Results]:
    @cache
    def results() -> Results:
        found: Results = ftcomm.dask.run(cluster.client, train, RANKS, (STEPS,))
        assert [rank for rank, _ in found] == list(range(RANKS))
        assert len({model for _, model in found}) == 1
        return found

    return results


def check(cluster: Cluster, undisturbed: Callable[[], Results], folder: Path, *kills: str) -> None:
    for kill in kills:
        if kill.endswith("grandparent"):  # nobody starts a nanny again
            cluster.start_nanny()
    found = ftcomm.dask.run(cluster.client, train, RANKS, (STEPS, kills, str(folder)))
    assert found == undisturbed()
    assert len(list(folder.iterdir())) == len(kills), "each has been killed"


@pytest.mark.parametrize("victim", OF_A_RANK)
def test_a_kill_changes_nothing(
    victim: str, cluster: Cluster, undisturbed: Callable[[], Results], tmp_path: Path
) -> None:
    check(cluster, undisturbed, tmp_path, f"1.3.{OF_A_RANK[victim]}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "ranks", "step"), [*itertools.product(OF_A_RANK, ("0", "1", "02"), (0, 3, 5))]
)
def test_nothing_changes_whoever_is_killed_and_when(
    victim: str,
    ranks: str,
    step: int,
    cluster: Cluster,
    undisturbed: Callable[[], Results],
    tmp_path: Path,
) -> None:
    check(cluster, undisturbed, tmp_path, *(f"{rank}.{step}.{OF_A_RANK[victim]}" for rank in ranks))


@pytest.mark.slow
def test_a_loss_of_all_ranks_goes_on_from_the_durable_checkpoint(
    cluster: Cluster, undisturbed: Callable[[], Results], tmp_path: Path
) -> None:
    kills = [f"{rank}.3.parent" for rank in range(RANKS)]
    stored = {"checkpoint": str(tmp_path / "store"), "checkpoint_every": "0s"}
    marks = tmp_path / "marks"
    marks.mkdir()
    arguments = STEPS, kills, str(marks)
    assert undisturbed() == ftcomm.dask.run(
        cluster.client, train, RANKS, arguments, settings=stored
    )
    assert len(list(marks.iterdir())) == RANKS
    for mark in marks.iterdir():
        mark.unlink()
    with pytest.raises(ftcomm.JobLostError):  # without a store
        ftcomm.dask.run(cluster.client, train, RANKS, arguments)


def test_a_retired_worker_is_an_ordinary_loss(
    cluster: Cluster, undisturbed: Callable[[], Results], tmp_path: Path
) -> None:
    arguments = STEPS, ("1.3.nobody",), str(tmp_path)
    with Observer() as observer, ThreadPoolExecutor(1) as pool:
        job = pool.submit(
            ftcomm.dask.run, cluster.client, train, RANKS, (*arguments, observer.address)
        )
        heard = observer.hear_until("waits", 1)["1"]
        parent = int(heard[0].split()[-1])
        pids = cluster.client.run(os.getpid)
        cluster.client.retire_workers([where for where, pid in pids.items() if pid == parent])
        cluster.start_nanny()
        assert job.result() == undisturbed()
        heard += observer.hear_until("raised", 1)["1"]
    assert "raised JobStoppedError" in heard


def test_ranks_share_a_process_of_dask(undisturbed: Callable[[], Results]) -> None:
    """A cluster in this process, whose one worker has a thread for each."""
    options = {"n_workers": 1, "threads_per_worker": RANKS, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(processes=False, **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        assert ftcomm.dask.run(client, train, RANKS, (STEPS,)) == undisturbed()
