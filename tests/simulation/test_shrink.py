"""A failing seed is made small: faults are dropped while it fails in the same way."""

import pytest
from click.testing import CliRunner

from ftcomm.recovery.call_progress import CallProgress
from ftcomm.recovery.states import Completion, WorkerState
from ftcomm_chaos.cli import main
from ftcomm_chaos.sim.shrink import fall_of, shrink, smallest
from ftcomm_chaos.sim.simulation import Simulation

SEARCHED = 300  # seeds; the defect below shows in one of ten


@pytest.fixture
def defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Complete in-flight calls although the position is frozen: the defect to be found."""

    def may_not_complete(self: CallProgress, epoch: int, now: float) -> Completion | None:
        del now
        return (
            Completion.REVOKED
            if epoch != self._view.epoch or self._view.state is WorkerState.FAILED
            else None
        )

    monkeypatch.setattr(CallProgress, "_may_not_complete", may_not_complete)


@pytest.mark.parametrize(
    ("needed", "kept"),
    [((), ()), ((3,), (3,)), ((0, 9), (0, 9)), ((1, 2, 8), (1, 2, 8))],
)
def test_what_is_left_is_what_it_takes(needed: tuple[int, ...], kept: tuple[int, ...]) -> None:
    assert smallest(tuple(range(10)), lambda some: set(needed) <= set(some)) == kept


def test_without_any_one_of_what_is_left_it_does_not_fail() -> None:
    def fails(some: tuple[int, ...]) -> bool:  # either of two pairs is enough
        return {1, 5} <= set(some) or {2, 7} <= set(some)

    left = smallest(tuple(range(10)), fails)
    assert fails(left)
    assert [fails(tuple(x for x in left if x != one)) for one in left] == [False, False]


def test_a_fault_left_out_changes_nothing_of_the_others() -> None:
    whole = Simulation(7)
    part = Simulation(7, only=(1, 3))
    assert part.plan == whole.plan
    assert part.faults.waiting == [whole.plan[1], whole.plan[3]]
    assert [p.rng(7).random() for p in part.faults.waiting] == [
        whole.plan[number].rng(7).random() for number in (1, 3)
    ]


@pytest.mark.usefixtures("defect")
def test_a_failing_seed_is_shrunk_and_its_command_fails_in_the_same_way() -> None:
    seed, whole = next(
        (seed, fall)
        for seed in range(SEARCHED)
        if (fall := fall_of(seed)) is not None and len(fall.fired) > 3
    )
    small = shrink(seed)
    assert small is not None
    numbers = tuple(planned.number for planned in small.plan)
    assert (small.fall.place, small.fall.fired) == (whole.place, numbers)
    assert 0 < len(numbers) < len(whole.fired)
    for one in numbers:
        rest = fall_of(seed, tuple(number for number in numbers if number != one))
        assert rest is None or rest.place != whole.place

    printed = CliRunner().invoke(main, ["sim", "--seed", str(seed), "--shrink"])
    assert printed.exit_code == 1
    command = printed.output.splitlines()[-1].removeprefix("again with: ftcomm-chaos ")
    assert command == small.replay.removeprefix("ftcomm-chaos ")
    again = CliRunner().invoke(main, command.split())
    assert (again.exit_code, small.fall.what in again.output) == (1, True)


def test_a_seed_that_keeps_the_rules_has_nothing_to_shrink() -> None:
    done = CliRunner().invoke(main, ["sim", "--seed", "3", "--shrink"])
    assert (done.exit_code, done.output) == (0, "seed 3 keeps all rules\n")


@pytest.mark.parametrize(
    "words", [["--only-faults", "2"], ["--shrink"], ["--seed", "1", "--only-faults", "2,x"]]
)
def test_options_that_make_no_sense_are_refused(words: list[str]) -> None:
    assert CliRunner().invoke(main, ["sim", *words]).exit_code == 2


def test_a_run_without_its_faults_can_be_asked_for() -> None:
    done = CliRunner().invoke(main, ["sim", "--seed", "3", "--only-faults", "none"])
    assert done.exit_code == 0
    assert "finished after" in done.output
