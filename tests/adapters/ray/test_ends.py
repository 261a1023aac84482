"""Jobs in Ray that cannot go on: who calls gets a named error, and every rank ends."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

ray = pytest.importorskip("ray")

import ftcomm  # noqa: E402 - as Ray is there
import ftcomm.ray  # noqa: E402 - likewise
from tests.adapters.observed_ranks import Observer, fail, train  # noqa: E402 - likewise
from tests.conformance.plans import ROOT, worker_environment  # noqa: E402 - likewise

pytestmark = [
    pytest.mark.process, pytest.mark.heavy, pytest.mark.timeout(600),
    pytest.mark.usefixtures("cluster"),
]  # fmt: skip

RANKS = 2
ENDLESS = 10**6  # steps
DRIVER = """
import sys
from tests.helpers.forker import die_with_parent
die_with_parent()
import ray, ftcomm.ray
from tests.adapters.observed_ranks import train
ray.init(address=sys.argv[1], log_to_driver=False)
ftcomm.ray.run(train, {ranks}, ({steps}, (), "", ("127.0.0.1", int(sys.argv[2]))))
"""


@contextlib.contextmanager
def running(
    *kills: str, folder: str = "", **options: Any
) -> Iterator[tuple[Future[Any], Observer]]:
    """A job that goes on until it is ended from outside, or by its kills."""
    with Observer() as observer, ThreadPoolExecutor(1) as pool:
        arguments = (ENDLESS, kills, folder, observer.address)
        yield pool.submit(ftcomm.ray.run, train, RANKS, arguments, **options), observer


@pytest.mark.parametrize("joined", [True, False])
def test_the_error_of_a_rank_is_raised(joined: bool, tmp_path: Path) -> None:
    arguments = 1, ZeroDivisionError("nothing to divide"), str(tmp_path)
    with pytest.raises(ZeroDivisionError, match="nothing to divide") as caught:
        ftcomm.ray.run(fail, RANKS, arguments, {"joined": joined})
    [note] = caught.value.__notes__
    assert note.startswith("in rank 1 of 2 (worker 1):" if joined else "in worker 1:")
    assert "in fail" in note
    assert "nothing to divide" in (tmp_path / "0").read_text(), "the other rank is told why"


def test_too_few_cpus_are_a_named_error() -> None:
    with pytest.raises(ftcomm.RankLostError, match="0 of 4 ranks have started") as caught:
        ftcomm.ray.run(train, 4, (1,), settings={"form_within": 1})
    assert caught.value.remedy.startswith("free resources of Ray's nodes")
    assert len(ftcomm.ray.run(train, 3, (1,))) == 3, "nothing is reserved any more"


def test_all_ranks_end_when_ray_gives_one_up(tmp_path: Path) -> None:
    kills = "0.3.nobody", "1.3.parent"
    with running(*kills, folder=str(tmp_path), max_restarts=0) as (job, observer):
        with pytest.raises(ftcomm.RankLostError, match="Ray has given up rank 1"):
            job.result()
        heard = observer.hear_until("ended", RANKS)
    assert heard["0"][-3:] == ["waits", "raised JobStoppedError", "ended"]


def test_the_loss_of_the_trackers_actor_is_a_named_error() -> None:
    with running() as (job, observer):
        observer.hear_until("step 3", RANKS)
        children = psutil.Process().children(recursive=True)
        (tracker,) = [each for each in children if each.name().startswith("ray::Tracker")]
        tracker.kill()
        with pytest.raises(ftcomm.TrackerLostError, match="the tracker's actor is lost"):
            job.result()
        heard = observer.hear_until("ended", RANKS)
    assert [words[-2] for words in heard.values()] == ["raised JobStoppedError"] * RANKS


def test_all_ranks_end_with_the_driver() -> None:
    code = DRIVER.format(ranks=RANKS, steps=ENDLESS)
    address = ray.get_runtime_context().gcs_address
    with Observer() as observer, subprocess.Popen(
        [sys.executable, "-c", code, address, str(observer.address[1])],
        env={**worker_environment(), "RAY_AUTH_MODE": "disabled"}, cwd=ROOT,
    ) as driver:  # fmt: skip
        try:
            observer.hear_until("step 3", RANKS)
        finally:
            driver.kill()
        heard = observer.hear_until("ended", RANKS)
    # Ray kills what an actor has started, at times before the rank can raise `JobStoppedError`.
    said = {word for words in heard.values() for word in words if not word.startswith("step")}
    assert said in ({"ended"}, {"ended", "raised JobStoppedError"})
