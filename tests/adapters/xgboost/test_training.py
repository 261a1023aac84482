"""`ftcomm.xgboost.train` without a loss: what it returns, what it refuses, what it tries again."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

xgboost = pytest.importorskip("xgboost")

from xgboost.core import XGBoostError  # noqa: E402 - likewise

import ftcomm  # noqa: E402 - skipped before, where xgboost is missing
import ftcomm.xgboost  # noqa: E402 - likewise
from ftcomm.testing import local_group  # noqa: E402 - likewise
from ftcomm.xgboost.group import GroupOverError, GroupTracker, TrainingGroup  # noqa: E402 - likewise
from ftcomm.xgboost.parameters import as_texts, check_same  # noqa: E402 - likewise
from ftcomm.xgboost.rounds import Rounds  # noqa: E402 - likewise
from ftcomm.xgboost.training import _BoostingRounds  # noqa: E402 - likewise

WORLD = 2
PARAMS = {"objective": "binary:logistic", "nthread": 1, "max_depth": 3}
ROUNDS = 4


def rows(rank: int, count: int = 50, columns: int = 4, **more: Any) -> Any:
    x = np.random.default_rng(rank).normal(size=(count, columns))
    return xgboost.DMatrix(x, x[:, 0] > 0, **more)


def trained(
    make_dmatrix: Callable[[Any], Any] = lambda comm: rows(comm.rank), *, world: int = WORLD,
    params: Any = PARAMS, rounds: Any = ROUNDS,
) -> list[bytes]:  # fmt: skip
    """The booster's bytes on each rank; `params` and `rounds` may be functions of the rank."""

    def train(comm: ftcomm.Communicator) -> bytes:
        own = params(comm.rank) if callable(params) else params
        count = rounds(comm.rank) if callable(rounds) else rounds
        return bytes(ftcomm.xgboost.train(own, make_dmatrix, count).save_raw("ubj"))

    with local_group(world, settings={"call_deadline": 60}) as group:
        return group.run(train)


def test_all_ranks_get_one_booster() -> None:
    first, second = trained()
    assert first == second
    booster = xgboost.Booster(model_file=bytearray(first))
    assert booster.num_boosted_rounds() == ROUNDS


def test_a_group_of_one_trains_as_xgboost_alone() -> None:
    alone = xgboost.train(PARAMS, rows(0), ROUNDS)
    assert trained(world=1) == [bytes(alone.save_raw("ubj"))]


def test_no_thread_is_left_behind() -> None:
    before = set(threading.enumerate())
    trained()
    assert set(threading.enumerate()) == before


REFUSED = {
    "device": "cuda",
    "tree_method": "exact",
    "booster": "gblinear",
    "process_type": "update",
    "updater": "refresh",
    "lambdarank_unbiased": True,
}


@pytest.mark.parametrize("name", REFUSED)
def test_parameters_that_cannot_keep_the_promise_are_refused(name: str) -> None:
    with pytest.raises(ftcomm.ConfigError, match=f"refuses {name}="):
        as_texts({**PARAMS, name: REFUSED[name]}, ROUNDS)


@pytest.mark.parametrize("device", ["cuda:1", "gpu", "sycl"])
def test_all_trainers_of_gpus_are_refused(device: str) -> None:
    with pytest.raises(ftcomm.ConfigError, match="trains on CPUs"):
        as_texts({"device": device}, ROUNDS)


@pytest.mark.parametrize(("params", "rounds"), [([("eta", 1)], 3), ({1: 2}, 3), ({}, 0), ({}, 2.0)])
def test_malformed_arguments_are_refused(params: Any, rounds: Any) -> None:
    with pytest.raises(ftcomm.ConfigError, match="must"):
        as_texts(params, rounds)


def test_without_a_communicator_it_says_what_to_do() -> None:
    with pytest.raises(ftcomm.ConfigError, match=r"no open communicator.*with ftcomm\.init"):
        ftcomm.xgboost.train(PARAMS, rows, ROUNDS)


def test_it_must_be_the_one_that_loads() -> None:
    def load(comm: ftcomm.Communicator) -> None:
        comm.load_checkpoint()
        ftcomm.xgboost.train(PARAMS, rows, ROUNDS)

    with local_group(1) as group, pytest.raises(ValueError, match="call none before"):
        group.run(load)


def test_unequal_parameters_are_refused() -> None:
    params = [PARAMS, {**PARAMS, "eta": 0.1}]
    with pytest.raises(ftcomm.ConfigError, match=r"rank 1 trains with eta=0.1, and rank 0 with"):
        trained(params=lambda rank: params[rank])
    with pytest.raises(ftcomm.ConfigError, match="rank 1 trains with num_boost_round=5"):
        trained(rounds=lambda rank: ROUNDS + rank)


def test_other_parameters_than_the_checkpoints_are_refused() -> None:
    before, now = as_texts(PARAMS, 1), as_texts({**PARAMS, "max_depth": 9}, 1)
    with pytest.raises(ftcomm.ConfigError, match=r"trained with max_depth=3.*asks for max_depth=9"):
        check_same(now, before)


DATA: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an empty shard": (lambda comm: rows(comm.rank, 50 - 50 * comm.rank), "rank 1 have no rows"),
    "other names": (
        lambda comm: rows(comm.rank, feature_names=list("abcd") if comm.rank else None),
        "rank 1 has other features than rank 0",
    ),
    "other types": (
        lambda comm: rows(comm.rank, feature_types=["int" if comm.rank else "float"] * 4),
        "rank 1 has other features than rank 0",
    ),
    "no DMatrix": (lambda comm: np.ones((3, 3)), "returned ndarray, and must return"),
    "a collective": (
        lambda comm: (comm.barrier(), rows(comm.rank))[1],
        "make_dmatrix has called a collective",
    ),
}


@pytest.mark.parametrize("which", DATA)
def test_data_that_do_not_fit_are_refused(which: str) -> None:
    make_dmatrix, text = DATA[which]
    with pytest.raises(ftcomm.ConfigError, match=text):
        trained(make_dmatrix)


def test_data_of_another_size_than_before_are_refused() -> None:
    tracker = GroupTracker(1, "127.0.0.1")
    rounds = Rounds(PARAMS, lambda: rows(0))
    group = TrainingGroup(
        0, tracker.address, lambda: rounds.prepare({"round": 0, "booster": b"", "rows": [49]})
    )
    with pytest.raises(ftcomm.ConfigError, match="rank 0 have 50 rows, and had 49 when"):
        group.grow(0, lambda: False)
    group.leave()
    tracker.stop(wait=True)


def test_an_error_of_the_script_is_raised_as_it_is() -> None:
    def make_dmatrix(comm: ftcomm.Communicator) -> Any:
        if comm.rank:
            raise FileNotFoundError("no such rows")
        return rows(0)

    with pytest.raises(FileNotFoundError, match="no such rows"):
        trained(make_dmatrix)


def test_an_error_of_xgboost_is_raised_with_its_rank() -> None:
    def make_dmatrix(comm: ftcomm.Communicator) -> Any:
        data = rows(comm.rank)
        if comm.rank:
            data.set_label(np.full(50, 7.0))
        return data

    with pytest.raises(XGBoostError, match=r"failed twice, and no worker was lost:.*rank 1: "):
        trained(make_dmatrix)


@pytest.mark.parametrize("rank", range(WORLD))
def test_one_error_is_tried_again(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a connection of XGBoost's that breaks once."""
    undisturbed = trained()
    update, failures = xgboost.Booster.update, []

    def fail_once(booster: Any, data: Any, iteration: int) -> None:
        if iteration == 2 and data.get_label().tolist() == labels and not failures:
            failures.append(iteration)
            raise XGBoostError("a connection was reset")
        update(booster, data, iteration)

    labels = rows(rank).get_label().tolist()
    monkeypatch.setattr(xgboost.Booster, "update", fail_once)
    assert trained() == undisturbed
    assert failures == [2]


def test_ranks_that_end_a_round_with_other_bytes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on processors that add in another way."""
    save = xgboost.Booster.save_raw

    def other(booster: Any, form: str) -> bytearray:
        raw = save(booster, form)
        if xgboost.collective.is_distributed() and xgboost.collective.get_rank() == 1:
            raw[-20] ^= 1
        return bytearray(raw)

    monkeypatch.setattr(xgboost.Booster, "save_raw", other)
    with pytest.raises(ftcomm.CollectiveMismatchError, match=r"checkpoint\(\).*booster"):
        trained()


def test_a_word_of_another_epoch_forms_no_group() -> None:
    """A restarted rank replays the words that its dead process may have followed."""
    comm: Any = SimpleNamespace(epoch=2, rank=1, error=None)
    training = _BoostingRounds(comm, PARAMS, rows, None)
    training._form_group({"round": 0, "booster": b"", "rows": []}, 1, {})
    assert training._group is None


def test_a_group_that_never_forms_is_left() -> None:
    tracker = GroupTracker(2, "127.0.0.1")
    group = TrainingGroup(0, tracker.address, lambda: lambda index: index)
    with pytest.raises(GroupOverError):
        group.grow(0, lambda: True)
    assert not group.has_formed
    tracker.stop()
    group.leave()
    assert "ftcomm-xgboost" not in {thread.name for thread in threading.enumerate()}


def test_a_tracker_that_does_not_end_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As XGBoost's does that is stopped in the moment in which a rank leaves."""
    may_end, has_begun = threading.Event(), threading.Event()
    tracker = GroupTracker(2, "127.0.0.1")
    free = tracker._tracker.free

    def wait() -> None:
        has_begun.set()
        may_end.wait()
        free()

    monkeypatch.setattr(tracker._tracker, "free", wait)
    tracker.stop()
    assert has_begun.wait(60)
    may_end.set()
