"""Jobs in Dask that cannot go on: who calls gets a named error, and every rank a typed one."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

distributed = pytest.importorskip("distributed")

import ftcomm  # noqa: E402 - as Dask is there
import ftcomm.dask  # noqa: E402 - likewise
from tests.adapters.dask.clusters import Cluster  # noqa: E402 - likewise
from tests.adapters.observed_ranks import Observer, fail, train  # noqa: E402 - likewise
from tests.conformance.plans import ROOT, worker_environment  # noqa: E402 - likewise

pytestmark = [pytest.mark.process, pytest.mark.heavy, pytest.mark.timeout(600)]

RANKS = 2
ENDLESS = 10**6  # steps
CLIENT = """
import sys
from tests.helpers.forker import die_with_parent
die_with_parent()
import distributed, ftcomm.dask
from tests.adapters.observed_ranks import train
client = distributed.Client(scheduler_file=sys.argv[1])
ftcomm.dask.run(client, train, {ranks}, ({steps}, (), "", ("127.0.0.1", int(sys.argv[2]))))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Of three workers of one thread; Dask gives up a task whose worker it has lost once."""
    allowed = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    with Cluster(tmp_path_factory.mktemp("dask"), nannies=3, config=allowed) as cluster:
        yield cluster


@contextlib.contextmanager
def running(
    cluster: Cluster, *kills: str, folder: str = ""
) -> Iterator[tuple[Future[Any], Observer]]:
    """A job that goes on until it is ended from outside, or by its kills."""
    with Observer() as observer, ThreadPoolExecutor(1) as pool:
        arguments = (ENDLESS, kills, folder, observer.address)
        job = pool.submit(ftcomm.dask.run, cluster.client, train, RANKS, arguments)
        yield job, observer


@pytest.mark.parametrize(("joined", "stored"), [(True, False), (False, False), (True, True)])
def test_the_error_of_a_rank_is_raised(
    joined: bool, stored: bool, cluster: Cluster, tmp_path: Path
) -> None:
    settings = {"checkpoint": str(tmp_path / "store")} if stored else {}
    arguments = 1, ZeroDivisionError("nothing to divide"), str(tmp_path)
    with pytest.raises(ZeroDivisionError, match="nothing to divide") as caught:
        ftcomm.dask.run(
            cluster.client, fail, RANKS, arguments, {"joined": joined}, settings=settings
        )
    [note] = caught.value.__notes__
    assert note.startswith("in rank 1 of 2 (worker 1):" if joined else "in worker 1:")
    assert "in fail" in note
    assert "nothing to divide" in (tmp_path / "0").read_text(), "the other rank is told why"


def test_too_few_threads_are_a_named_error(cluster: Cluster) -> None:
    with pytest.raises(ftcomm.RankLostError, match=r"\d of 4 "):
        ftcomm.dask.run(cluster.client, train, 4, (1,), settings={"form_within": 3})
    assert len(ftcomm.dask.run(cluster.client, train, 3, (1,))) == 3, "the threads are free again"


def test_all_ranks_end_when_dask_gives_one_up(cluster: Cluster, tmp_path: Path) -> None:
    with running(cluster, "1.3.parent", folder=str(tmp_path)) as (job, observer):
        heard = observer.hear_until("ended", RANKS)
        with pytest.raises(ftcomm.RankLostError, match="Dask has given up rank 1"):
            job.result()
    assert heard["0"][-2] == "raised RankLostError"


def test_a_rank_that_makes_no_call_is_ended_too(cluster: Cluster, tmp_path: Path) -> None:
    with running(cluster, "0.3.nobody", "1.3.parent", folder=str(tmp_path)) as (job, observer):
        with pytest.raises(ftcomm.RankLostError, match="Dask has given up rank 1"):
            job.result()
        heard = observer.hear_until("ended", RANKS)
    assert heard["0"][-3:] == ["waits", "raised JobStoppedError", "ended"]


def test_all_ranks_end_with_the_client(cluster: Cluster) -> None:
    code = CLIENT.format(ranks=RANKS, steps=ENDLESS)
    with Observer() as observer, subprocess.Popen(
        [sys.executable, "-c", code, cluster.client.scheduler_file, str(observer.address[1])],
        env=worker_environment(), cwd=ROOT,
    ) as client:  # fmt: skip
        try:
            observer.hear_until("step 3", RANKS)
        finally:
            client.kill()
        heard = observer.hear_until("ended", RANKS)
    assert [words[-2] for words in heard.values()] == ["raised JobStoppedError"] * RANKS


def test_all_ranks_end_with_the_scheduler(tmp_path: Path) -> None:
    with Cluster(tmp_path, nannies=RANKS) as cluster, running(cluster) as (job, observer):
        observer.hear_until("step 3", RANKS)
        os.kill(cluster.scheduler.pid, signal.SIGKILL)
        heard = observer.hear_until("ended", RANKS)
        with pytest.raises(ftcomm.TrackerLostError, match="Dask's scheduler is lost"):
            job.result()
    assert [words[-2] for words in heard.values()] == ["raised JobStoppedError"] * RANKS
