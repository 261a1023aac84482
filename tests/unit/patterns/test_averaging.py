"""Averages, local SGD and DiLoCo: what they compute, and when a checkpoint may be made."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.patterns import DiLoCo, LocalSGD, average_weights
from ftcomm.testing import local_group

Array = np.ndarray[Any, Any]
RANKS = 3


def on_all_ranks(job: Callable[[ftcomm.Communicator], Any]) -> list[Any]:
    with local_group(RANKS) as group:
        return group.run(job)


def weights_of(rank: int) -> list[Array]:
    rng = np.random.default_rng(rank)
    return [rng.standard_normal((4, 3), np.float32), rng.standard_normal(2)]


def means() -> list[Array]:
    """Folded in rank order, then divided."""
    first, second, third = (weights_of(rank) for rank in range(RANKS))
    return [(a + b + c) / RANKS for a, b, c in zip(first, second, third, strict=True)]


def same(arrays: Sequence[Array], wanted: Sequence[Array]) -> bool:
    pairs = zip(arrays, wanted, strict=True)
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def test_an_average_is_put_into_the_arrays_of_every_rank() -> None:
    def job(comm: ftcomm.Communicator) -> list[Array]:
        weights = weights_of(comm.rank)
        average_weights(comm, weights)
        return weights

    assert all(same(weights, means()) for weights in on_all_ranks(job))


def test_arrays_stay_as_they_are_where_they_cannot_be_averaged() -> None:
    with ftcomm.init("none") as comm:
        weights = [np.ones(2), np.ones(2, int)]
        with pytest.raises(TypeError, match="a mean is no whole number"):
            average_weights(comm, weights)
        assert same(weights, [np.ones(2), np.ones(2, int)])


def test_local_sgd_averages_behind_each_last_step_alone() -> None:
    def job(comm: ftcomm.Communicator) -> list[Any]:
        pattern = LocalSGD(comm, every=3)
        comm.load_checkpoint()
        weights = weights_of(comm.rank)
        found = []
        for _ in range(2):
            steps = [pattern.step(weights) for _ in range(2)]
            found.append((steps, same(weights, weights_of(comm.rank))))
            found.append((pattern.step(weights), same(weights, means())))
            comm.checkpoint(weights)
            weights = weights_of(comm.rank)
        return found

    assert on_all_ranks(job) == [[([False, False], True), (True, True)] * 2] * RANKS


def outer_steps(momentum: float, outer_lr: float, every: int, rounds: int) -> list[Array]:
    """DiLoCo in float64, where each rank's inner steps add its own `weights_of`."""
    start = [np.ones((4, 3)), np.ones(2)]
    velocity = [np.zeros((4, 3)), np.zeros(2)]
    for _ in range(rounds):
        for x, v, number in zip(start, velocity, range(2), strict=True):
            grad = -np.mean([every * weights_of(rank)[number] for rank in range(RANKS)], axis=0)
            v[...] = momentum * v + grad
            x -= outer_lr * (grad + momentum * v)
    return start


@pytest.mark.parametrize(("outer_lr", "momentum"), [(0.7, 0.9), (1.0, 0.0)])
def test_the_outer_step_is_nesterovs(outer_lr: float, momentum: float) -> None:
    def job(comm: ftcomm.Communicator) -> list[Array]:
        pattern = DiLoCo(comm, every=2, outer_lr=outer_lr, momentum=momentum)
        start: list[Array] = [np.ones((4, 3), np.float32), np.ones(2)]
        _, (weights, velocity) = comm.load_checkpoint((start, None))
        pattern.begin(weights, velocity)
        for _ in range(3):
            outer = []
            for _ in range(2):
                for x, change in zip(weights, weights_of(comm.rank), strict=True):
                    x += change
                outer.append(pattern.step(weights))
            assert outer == [False, True]
            comm.checkpoint((weights, pattern.velocity))
        return list(weights)

    found = on_all_ranks(job)
    assert all(same(weights, found[0]) for weights in found)
    for x, wanted in zip(found[0], outer_steps(momentum, outer_lr, 2, 3), strict=True):
        np.testing.assert_allclose(x, wanted, rtol=1e-5)


def test_an_outer_step_goes_on_with_the_velocity_of_a_checkpoint() -> None:
    def trained(weights: list[Array], begun_again_at: int) -> list[Array]:
        velocity: list[Array] | None = None
        with ftcomm.init("none") as comm:
            comm.load_checkpoint()
            for step in range(4):
                if step in {0, begun_again_at}:
                    pattern = DiLoCo(comm, every=1)
                    pattern.begin(weights, velocity)
                for x in weights:
                    x += np.sin(step + x)
                assert pattern.step(weights)
                velocity = [v.copy() for v in pattern.velocity]
                comm.checkpoint((weights, velocity))
        return weights

    assert same(trained(weights_of(0), 2), trained(weights_of(0), 0))


@pytest.mark.parametrize("pattern", [LocalSGD, DiLoCo])
def test_steps_of_ranks_that_average_at_other_times_do_not_match(pattern: Any) -> None:
    def job(comm: ftcomm.Communicator) -> None:
        made = pattern(comm, every=1 + comm.rank)
        weights = [np.ones(2)]
        comm.load_checkpoint()
        if pattern is DiLoCo:
            made.begin(weights)
        for _ in range(2):
            made.step(weights)

    with pytest.raises(ftcomm.CollectiveMismatchError, match=r"they differ in tag: [12] and [12]"):
        on_all_ranks(job)


def test_a_checkpoint_between_two_averages_is_refused() -> None:
    with ftcomm.init("none") as comm:
        pattern, weights = LocalSGD(comm, every=3), [np.ones(2)]
        with pytest.raises(ValueError, match=r"step\(\) must come after load_checkpoint\(\)"):
            pattern.step(weights)
        comm.load_checkpoint()
        pattern.step(weights)
        comm.checkpoint(weights)
        with pytest.raises(
            ValueError, match="rank 0 made checkpoint 1 after 1 of 3 steps of LocalSGD"
        ):
            pattern.step(weights)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"every": 0}, "DiLoCo: every is 0, must be at least 1"),
        ({"outer_lr": 0.0}, "outer_lr is 0.0, must be a number above 0"),
        ({"outer_lr": float("nan")}, "outer_lr is nan"),
        ({"momentum": 1.0}, "momentum is 1.0, must be at least 0 and below 1"),
    ],
)
def test_settings_that_cannot_be_are_named(options: dict[str, Any], error: str) -> None:
    with ftcomm.init("none") as comm, pytest.raises(ValueError, match=error):
        DiLoCo(comm, **options)


def test_every_is_a_whole_number() -> None:
    with ftcomm.init("none") as comm, pytest.raises(TypeError):
        LocalSGD(comm, every=2.5)  # type: ignore[arg-type]  # that is what is tested


def test_diloco_needs_the_weights_of_the_load() -> None:
    with ftcomm.init("none") as comm:
        pattern = DiLoCo(comm)
        comm.load_checkpoint()
        with pytest.raises(ValueError, match=r"the weights of begin\(\) \[\]: call begin\(\)"):
            pattern.step([np.ones(2)])
        with pytest.raises(ValueError, match=r"the velocity of begin\(\) have the shapes"):
            pattern.begin([np.ones(2)], [np.ones(3)])
        pattern.begin([np.ones(2)])
        with pytest.raises(ValueError, match=r"the weights of step\(\) have the shapes \[\(3,\)\]"):
            pattern.step([np.ones(3)])
