"""Kills in each way to train: the weights are those of a run without kills, to the bit."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ftcomm.torch.requirement import has_backend  # noqa: E402 - as torch is there
from tests.adapters.jobs import (  # noqa: E402 - likewise
    lose_all,
    model_in,
    run,
    runs_without_kills,
    victims_in,
)

pytestmark = [pytest.mark.process, pytest.mark.heavy, pytest.mark.timeout(300)]

Runs = Callable[..., str]
SCRIPTS = Path(__file__).parent / "scripts"
WAYS = {
    "ddp": ("train.py", "--way=ddp"),
    "stock": ("train.py", "--way=stock"),
    "fsdp": ("train.py", "--way=fsdp"),
    "lightning": ("train_lightning.py",),
    "trainer": ("train_trainer.py",),
    "accelerate": ("train_accelerate.py",),
}
NEEDS = {
    "lightning": "lightning.pytorch",
    "trainer": "transformers",
    "accelerate": "accelerate",
}
# The last step of six is 5; a version has two.
VICTIMS = {"rank 0": "0", "another": "1", "two at once": "02"}
MOMENTS = {
    "first step": "0.backward",
    "in backward": "3.backward",
    "in the optimizer": "3.optimizer",
    "last step": "5.backward",
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return runs_without_kills(tmp_path_factory)


def installed(way: str) -> tuple[Path, list[str]]:
    """The script of a way to train, and its options."""
    script, *more = WAYS[way]
    if way in {"stock", "fsdp"} and not has_backend(torch):
        pytest.skip("torch is too old for the backend")
    if way in NEEDS:
        pytest.importorskip(NEEDS[way], reason=f"the package {NEEDS[way]} is not installed")
    return SCRIPTS / script, more


def check(
    undisturbed: Runs, folder: Path, way: str, victims: str, moment: str, *options: str
) -> str:
    script, more = installed(way)
    kills = [f"{rank}.{moment}" for rank in victims]
    said = run(script, folder / "job", *more, *options, kills=kills)
    assert victims_in(said) == list(victims), said[-3000:]
    assert model_in(said) == model_in(undisturbed(script, *more, *options))
    return said


@pytest.mark.parametrize("way", WAYS)
def test_a_kill_in_backward_changes_nothing(way: str, undisturbed: Runs, tmp_path: Path) -> None:
    check(undisturbed, tmp_path, way, "1", "3.backward")


@pytest.mark.parametrize(
    "way", [way if way == "ddp" else pytest.param(way, marks=pytest.mark.slow) for way in WAYS]
)
def test_a_kill_of_all_at_once_changes_nothing(way: str, undisturbed: Runs, tmp_path: Path) -> None:
    """The next attempt begins from the durable checkpoint, in the middle of an epoch."""
    script, options = installed(way)
    said = lose_all(script, tmp_path / "job", *options, at="3.backward")
    assert re.search(r"attempt 2 begins from checkpoint \d", said), said[-3000:]
    assert model_in(said) == model_in(undisturbed(script, *options))


@pytest.mark.slow
@pytest.mark.parametrize("time", range(1, 4))
@pytest.mark.parametrize(("way", "victims", "moment"), [*itertools.product(WAYS, VICTIMS, MOMENTS)])
def test_nothing_changes_whoever_is_killed_and_when(
    way: str,
    victims: str,
    moment: str,
    time: int,
    undisturbed: Runs,
    tmp_path: Path,
) -> None:
    """Three times, since a death meets the other ranks at another point each time."""
    check(undisturbed, tmp_path, way, VICTIMS[victims], MOMENTS[moment])


@pytest.mark.slow
@pytest.mark.parametrize("time", range(1, 21))
@pytest.mark.parametrize("way", WAYS)
def test_two_deaths_at_once_change_nothing_twenty_times(
    way: str, time: int, undisturbed: Runs, tmp_path: Path
) -> None:
    check(undisturbed, tmp_path, way, VICTIMS["two at once"], MOMENTS["in backward"])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "stock", "fsdp"])
def test_bfloat16_is_the_same_after_a_kill(way: str, undisturbed: Runs, tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes")
    check(undisturbed, tmp_path, way, "1", "3.backward", "--dtype", "bfloat16")


@pytest.mark.parametrize(
    "moment", ["3.backward", pytest.param("5.backward", marks=pytest.mark.slow)]
)
def test_lightning_validates_between_steps(moment: str, undisturbed: Runs, tmp_path: Path) -> None:
    said = check(undisturbed, tmp_path, "lightning", "1", moment, "--validate")
    validated = set(re.findall(r"\] validated (\d+) (\S+)", said))
    assert sorted(step for step, _ in validated) == ["2", "4", "6"], "one module in each, of all"


@pytest.mark.parametrize(
    "moment", [pytest.param("3.backward", marks=pytest.mark.slow), "5.backward"]
)
def test_lightning_monitors_the_same_loss_on_all_ranks(
    moment: str, undisturbed: Runs, tmp_path: Path
) -> None:
    """A kill before the end of the epoch, whose mean has the batches before it too; and behind."""
    said = check(undisturbed, tmp_path, "lightning", "1", moment, "--monitor")
    other = undisturbed(SCRIPTS / "train_lightning.py", "--monitor")
    means = [set(re.findall(r"\[(\d)\] mean (\S+)", text)) for text in (said, other)]
    assert means[0] == means[1], "metrics of each rank's own"
    said += other
    assert len(set(re.findall(r"\] loss (\S+)", said))) == 1, said


def test_lightning_keeps_gradients_of_manual_steps(undisturbed: Runs, tmp_path: Path) -> None:
    check(undisturbed, tmp_path, "lightning", "0", "2.backward", "--manual")


@pytest.mark.slow
def test_lightning_averages_the_same_weights(undisturbed: Runs, tmp_path: Path) -> None:
    check(undisturbed, tmp_path, "lightning", "1", "3.backward", "--average")


@pytest.mark.slow
def test_the_trainer_stops_early_on_all_ranks(undisturbed: Runs, tmp_path: Path) -> None:
    said = check(undisturbed, tmp_path, "trainer", "1", "3.backward", "--stop")
    losses = re.findall(r"\] losses (4 .*)", said)
    assert (len(losses), len(set(losses))) == (3, 1), said


@pytest.mark.parametrize(
    "moment", ["3.backward", pytest.param("5.backward", marks=pytest.mark.slow)]
)
def test_the_trainers_collator_draws_the_same_again(
    moment: str, undisturbed: Runs, tmp_path: Path
) -> None:
    """A kill in the middle of an epoch, whose next batch was read ahead; and behind its end."""
    check(undisturbed, tmp_path, "trainer", "1", moment, "--noise")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "trainer"])
def test_worker_processes_draw_the_same_again(way: str, undisturbed: Runs, tmp_path: Path) -> None:
    options = "--noise", "--loader-workers=2"
    check(undisturbed, tmp_path, way, "1", "3.backward", *options)


@pytest.mark.slow
def test_a_loader_with_workers_goes_on_in_the_middle_of_an_epoch(
    undisturbed: Runs, tmp_path: Path
) -> None:
    check(undisturbed, tmp_path, "ddp", "1", "3.optimizer", "--loader-workers", "2")


@pytest.mark.parametrize("way", ["sync", "no_sync"])
def test_gradients_that_add_up_over_a_checkpoint_are_kept(
    way: str, undisturbed: Runs, tmp_path: Path
) -> None:
    script = SCRIPTS / "train_accumulating.py"
    kills = ["1.4.backward", "0.7.backward"]
    said = run(script, tmp_path / "job", f"--way={way}", kills=kills)
    assert victims_in(said) == ["0", "1"], said[-3000:]
    assert model_in(said) == model_in(undisturbed(script, f"--way={way}"))


def test_a_state_that_is_not_plain_is_kept(undisturbed: Runs, tmp_path: Path) -> None:
    script = SCRIPTS / "train_unusual.py"
    said = run(script, tmp_path / "job", kills=["0.3.backward", "1.5.backward"])
    assert victims_in(said) == ["0", "1"], said[-3000:]
    assert model_in(said) == model_in(undisturbed(script))
