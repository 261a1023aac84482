"""The callback for skorch: what it refuses, what it keeps, and where a killed rank goes on."""

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
skorch = pytest.importorskip("skorch", reason="the package skorch is not installed")

from skorch.dataset import ValidSplit  # noqa: E402 - skipped before, where it is missing

import ftcomm  # noqa: E402 - likewise
import ftcomm.torch as ft  # noqa: E402 - likewise
from ftcomm.torch.skorch import FtcommCallback  # noqa: E402 - likewise
from tests.adapters.jobs import (  # noqa: E402 - likewise
    WORKERS,
    model_in,
    run,
    runs_without_kills,
    victims_in,
)

SCRIPT = Path(__file__).parent / "scripts" / "train_skorch.py"
ROWS = np.random.default_rng(1).standard_normal((24, 2)).astype(np.float32)
RESULTS = ROWS.sum(1, keepdims=True)


@pytest.fixture(autouse=True)
def comm() -> Iterator[ftcomm.Communicator]:
    with ft.init("none") as communicator:
        yield communicator


def net_of(*callbacks: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    options = {"batch_size": 4, "max_epochs": 2, "train_split": ValidSplit(3), **options}
    kind = options.pop("kind", skorch.NeuralNetRegressor)
    return kind(torch.nn.Linear(2, 1), callbacks=list(callbacks), verbose=0, **options)


def refusal(net: Any, fit: str = "fit", **options: Any) -> str:
    with pytest.raises(ftcomm.ConfigError) as caught:
        getattr(net, fit)(ROWS, RESULTS, **options)
    return str(caught.value)


class Pair(skorch.NeuralNetRegressor):
    """A net of two optimizers, as a pair of modules against each other has."""

    def initialize_optimizer(self, *arguments: Any, **options: Any) -> Any:
        super().initialize_optimizer(*arguments, **options)
        self.second_ = torch.optim.SGD(self.module_.parameters(), lr=0.1)
        return self


class Mixed(skorch.NeuralNetRegressor):
    """A net that looks like one of AccelerateMixin."""

    accelerator = None


class Stream(torch.utils.data.IterableDataset[Any]):
    """Rows without a number."""

    def __iter__(self) -> Iterator[Any]:
        yield from zip(ROWS, RESULTS, strict=True)


class Unfreeze(skorch.callbacks.Callback):
    """Trains one parameter less in the second epoch."""

    def on_epoch_begin(self, net: Any, **_: Any) -> None:
        net.module_.bias.requires_grad_(len(net.history) < 2)


class Interrupt(skorch.callbacks.Callback):
    """Ends the training in the second epoch."""

    def on_epoch_end(self, net: Any, **_: Any) -> None:
        if len(net.history) == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kind": Pair}, "has 2 optimizers, whose steps cannot be told apart - train by one"),
        ({"kind": Mixed}, "AccelerateMixin places its own data - use ftcomm.torch.accelerate"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS searches by each rank's own loss - use an"),
        ({"iterator_train": list}, "iterator_train is list, which knows no ranks - leave"),
        ({"iterator_train__sampler": [0, 1]}, "iterator_train__sampler is set, and the order"),
        ({"device": "meta"}, "the net is on meta, and ftcomm carries tensors in host memory"),
    ],
    ids=["optimizers", "mixin", "LBFGS", "loader", "sampler", "device"],
)
def test_a_net_that_cannot_go_on_is_refused(options: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(net_of(FtcommCallback(), **options))


def test_the_state_of_another_training_is_refused() -> None:
    begun = skorch.callbacks.LoadInitState(skorch.callbacks.Checkpoint(dirname="none"))
    assert "LoadInitState begins with other files" in refusal(net_of(FtcommCallback(), begun))


def test_two_callbacks_in_one_net_are_refused() -> None:
    net = net_of(FtcommCallback(), FtcommCallback())
    assert "more than one FtcommCallback - leave one" in refusal(net)


def test_a_second_fit_is_refused() -> None:
    net = net_of(FtcommCallback()).fit(ROWS, RESULTS)
    sentence = "the job's state was loaded before this fit, and it is loaded once - train all"
    assert sentence in refusal(net)
    assert sentence in refusal(net, "partial_fit")


def test_rows_without_a_number_are_refused() -> None:
    net = net_of(FtcommCallback(), train_split=None)
    with pytest.raises(ftcomm.ConfigError, match=r"no length.* - pass a data set with a length"):
        net.fit(Stream(), None)


def test_a_net_without_parameters_is_refused() -> None:
    net = net_of(FtcommCallback())
    net.initialize()
    net.module_.requires_grad_(requires_grad=False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        net.partial_fit(ROWS, RESULTS)


def test_other_parameters_within_a_fit_are_refused() -> None:
    net = net_of(FtcommCallback(), Unfreeze())
    assert "trains other parameters than at the beginning of fit - freeze" in refusal(net)


class Ranks:
    """A communicator whose other rank answers otherwise."""

    version, rank, world_size = -1, 0, 2

    def __init__(self, inner: ftcomm.Communicator, **others: Any) -> None:
        self._inner, self._others = inner, others

    def allgather_object(self, value: dict[str, Any]) -> list[dict[str, Any]]:
        return [value, {**value, **self._others}]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ({"rows": "other"}, "the split into training and validation data differs.*random_state"),
        (
            {"epochs": 3},
            "the histories of the ranks have 0, 3 epochs at the beginning of fit - begin",
        ),
    ],
    ids=["split", "history"],
)
def test_ranks_that_begin_otherwise_are_refused(
    comm: ftcomm.Communicator, others: dict[str, Any], sentence: str
) -> None:
    ranks: Any = Ranks(comm, **others)
    ft.use(ranks)
    assert re.search(sentence, refusal(net_of(FtcommCallback())))


def test_ranks_that_end_otherwise_are_refused(comm: ftcomm.Communicator) -> None:
    class Other(Ranks):
        def allreduce(self, value: Any, *arguments: Any, **options: Any) -> Any:
            is_one = isinstance(value, int)  # of ranks that end
            return value if is_one else comm.allreduce(value, *arguments, **options)

    ranks: Any = Other(comm)
    ft.use(ranks)
    assert "1 of 2 ranks end the training early - let" in refusal(
        net_of(FtcommCallback(), Interrupt(), train_split=None)
    )


def test_checkpoints_are_kept_in_and_between_epochs(comm: ftcomm.Communicator) -> None:
    """Of four steps an epoch, the second has a checkpoint, and so has the fourth."""
    net = net_of(FtcommCallback(every=2)).fit(ROWS, RESULTS)
    assert comm.version == 4
    assert len(net.history) == 2
    assert "fit_loop" not in vars(net)
    assert net.iterator_train is torch.utils.data.DataLoader


def test_a_callback_that_interrupts_ends_the_training(comm: ftcomm.Communicator) -> None:
    net = net_of(FtcommCallback(every=9), Interrupt(), max_epochs=9).fit(ROWS, RESULTS)
    assert (len(net.history), comm.version) == (2, 1)


def test_the_training_is_that_of_skorch_alone() -> None:
    nets = [net_of(*callbacks).fit(ROWS, RESULTS) for callbacks in ([], [FtcommCallback()])]
    weights = [net.module_.weight.tolist() for net in nets]
    losses = [net.history[:, ("train_loss", "valid_loss")] for net in nets]
    assert (weights[0], losses[0]) == (weights[1], losses[1])


def test_partial_fit_makes_the_epochs_that_it_is_told(comm: ftcomm.Communicator) -> None:
    net = net_of(FtcommCallback()).partial_fit(ROWS, RESULTS, epochs=3)
    assert (len(net.history), comm.version) == (3, 3)


def test_a_loader_of_ftcomm_keeps_its_order_of_rows() -> None:
    net = net_of(FtcommCallback(), iterator_train=ft.DataLoader, iterator_train__seed=3)
    assert len(net.fit(ROWS, RESULTS).history) == 2
    assert net.iterator_train is ft.DataLoader


class Copies(skorch.callbacks.Callback):
    """Copies and pickles the net while it is trained."""

    def on_epoch_end(self, net: Any, **_: Any) -> None:
        for copied in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
            assert copied.callbacks_[-1][1]._loop is None


def test_a_net_can_be_copied_while_it_is_trained() -> None:
    assert len(net_of(FtcommCallback(), Copies()).fit(ROWS, RESULTS).history) == 2


# --- kills ------------------------------------------------------------------------------------


Outcome = tuple[str, list[str]]


def outcome(said: str) -> Outcome:
    """The one model, and the losses of all ranks with each rank's history."""
    (losses,) = set(re.findall(r"^\[\d\] (losses .*)$", said, re.MULTILINE))
    histories = sorted(re.findall(r"^\[\d\] history .*$", said, re.MULTILINE))
    assert len(histories) == WORKERS, said
    return model_in(said), [losses, *histories]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    return runs_without_kills(tmp_path_factory)


@pytest.mark.process
@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("moment", "options"),
    [("2.backward", ()), ("5.optimizer", ("--stop-early",))],
    ids=["within an epoch", "a callback ends it"],
)
def test_a_kill_changes_neither_the_model_nor_the_history(
    moment: str,
    options: tuple[str, ...],
    undisturbed: Callable[..., str],
    tmp_path: Path,
) -> None:
    said = run(SCRIPT, tmp_path / "job", *options, kills=[f"1.{moment}"])
    assert victims_in(said) == ["1"]
    assert outcome(said) == outcome(undisturbed(SCRIPT, *options))
