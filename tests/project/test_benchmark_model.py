"""The alpha-beta model follows the real schedules: counts, waits, and ranks that are alike."""

from pathlib import Path
from typing import Any

import pytest

from ftcomm.collectives.schedules.schedule import Schedule, Step
from ftcomm.collectives.selection import schedule_for
from ftcomm.protocol.signature import Algorithm, Kind

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return pytest.importorskip("_schedules")


def schedules(algorithm: Algorithm, world_size: int, count: int) -> list[Schedule]:
    return [
        schedule_for(Kind.ALLREDUCE, world_size, rank, count, 4, algorithm=algorithm)
        for rank in range(world_size)
    ]


def counts(model: Any, algorithm: Algorithm, world_size: int, count: int) -> list[float]:
    """Messages, bytes and combined bytes on the longest way to the end."""
    units = [model.Costs(1, 0, 0), model.Costs(0, 1, 0), model.Costs(0, 0, 1)]
    ranks = schedules(algorithm, world_size, count)
    return [model.finish(ranks, 4, unit) for unit in units]


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_the_known_costs_of_ring_and_doubling_come_out(model: Any, n: int) -> None:
    nbytes = 4 * 3 * n
    log = n.bit_length() - 1
    ring = counts(model, Algorithm.RING, n, 3 * n)
    assert ring == [2 * (n - 1), 2 * nbytes * (n - 1) / n, nbytes * (n - 1) / n]
    doubling = counts(model, Algorithm.RECURSIVE_DOUBLING, n, 3 * n)
    assert doubling == [log, log * nbytes, log * nbytes]


@pytest.mark.parametrize("n", [2, 3, 5, 8, 33])
def test_ranks_of_a_ring_are_alike_and_one_clock_tells_all(model: Any, n: int) -> None:
    ranks = schedules(Algorithm.RING, n, 6 * n)
    costs = model.Costs(1.0, 0.25, 0.5)
    assert all(model.are_alike(ranks[0], other) for other in ranks)
    assert model.finish(ranks, 4, costs) == pytest.approx(model.finish_alike(ranks[0], 4, costs))


def test_ranks_that_differ_are_not_taken_for_alike(model: Any) -> None:
    ranks = schedules(Algorithm.RECURSIVE_DOUBLING, 6, 5)
    assert not model.are_alike(ranks[0], ranks[1])


def test_who_is_awaited_holds_up_who_waits(model: Any) -> None:
    """A chain: rank 1 passes on what it got from rank 0 only when it is there."""
    ways = [(Step(0, send_to=1, send_hi=10),), (Step(0, recv_from=0, recv_hi=10),), ()]
    ways[1] += (Step(1, send_to=2, send_hi=10),)
    ways[2] += (Step(1, recv_from=1, recv_hi=10),)
    chain = [
        Schedule(Kind.BROADCAST, Algorithm.CHAIN, 3, rank, 10, 10, steps)
        for rank, steps in enumerate(ways)
    ]
    assert model.finish(chain, 1, model.Costs(1.0, 0.1, 0.0)) == pytest.approx(4.0)


def test_schedules_that_wait_for_each_other_are_an_error(model: Any) -> None:
    alone = Schedule(
        Kind.BROADCAST, Algorithm.CHAIN, 2, 0, 1, 1, (Step(0, recv_from=1, recv_hi=1),)
    )
    idle = Schedule(Kind.BROADCAST, Algorithm.CHAIN, 2, 1, 1, 1, ())
    with pytest.raises(ValueError, match="1 ranks wait"):
        model.finish([alone, idle], 1, model.Costs(1, 1, 1))


def test_the_fit_finds_the_costs_that_made_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    alpha_beta = pytest.importorskip("alpha_beta")
    rows = [[1, 4, 4], [2, 3000, 1500], [2, 1e6, 5e5], [6, 2e6, 1e6]]
    costs = [2e-5, 3e-10, 5e-11]
    seconds = [sum(c * x for c, x in zip(costs, row, strict=True)) for row in rows]
    found = alpha_beta.fit(rows, seconds)
    predicted = [found.alpha * a + found.beta * b + found.gamma * c for a, b, c in rows]
    assert predicted == pytest.approx(seconds)
    assert min(found.alpha, found.beta, found.gamma) >= 0


def test_a_schedule_sends_the_least_that_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    floor = pytest.importorskip("floor")
    for n in (2, 4, 8):
        found = floor.counted(n, 4_000_000)
        assert found["sent"] == n * floor.least_bytes(n, 4_000_000)


def test_what_the_loopback_carried_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    floor = pytest.importorskip("floor")
    text = "Inter-|\n face |bytes\n    lo: 1234 5 0 0 0 0 0 0 1234 5\n  eth0: 9 1\n"
    assert floor.looped_bytes(text) == 1234


@pytest.fixture
def papers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return pytest.importorskip("papers")


def test_alpha_and_beta_of_two_sizes_make_their_times(papers: Any) -> None:
    """On two processors: 1 KiB is one message, 4 MiB are two of half the bytes."""
    alpha, beta = 5e-5, 8e-10
    sizes = [(1 << 10, alpha + beta * (1 << 10)), (4 << 20, 2 * alpha + beta * (4 << 20))]
    costs = papers.fit(sizes, processors=2)
    assert (costs.alpha, costs.beta, costs.gamma) == pytest.approx((alpha, beta, 0.0))
    shared = [(nbytes, 2 * seconds) for nbytes, seconds in sizes]
    assert papers.fit(shared, processors=1).beta == pytest.approx(beta)


def test_speed_ups_are_those_of_a_ring_worked_out_by_hand(papers: Any) -> None:
    alpha, beta, step_s, nbytes, ranks = 5e-5, 8e-10, 1e-3, 4_000_000, 4
    work, costs = papers.Work(100.0, step_s, nbytes), papers.Costs(alpha, beta, 0.0)
    ring = 2 * (ranks - 1) * (alpha + beta * nbytes / ranks)
    by_hand = {"gradients": 100 / (25 * (1 + ring / step_s)), "weights": 100 / (25 + ring / step_s)}
    found = {name: papers.speedup(work, ranks, name, costs) for name in by_hand}
    assert found == {name: round(times, 2) for name, times in by_hand.items()}
    assert papers.speedup(work, 1, "gradients", costs) == 1.0


@pytest.mark.parametrize(
    ("killed", "model", "status"), [(["0", "1"], "a", 0), (["0"], "a", 1), (["0", "1"], "b", 1)]
)
def test_another_model_and_a_kill_that_did_not_happen_are_failures(
    papers: Any, monkeypatch: pytest.MonkeyPatch, killed: list[str], model: str, status: int
) -> None:
    line = {"kills": 2, "killed": killed, "model": model, "undisturbed": "a"}
    monkeypatch.setattr(papers, "take", lambda _: [{"machine": {}}, line])
    monkeypatch.setattr("sys.argv", ["papers.py", "--json"])
    assert papers.main() == status
