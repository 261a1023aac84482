"""The strategy for Lightning on one rank: what it refuses, and what it answers."""

import copy
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Lightning's own imports
    lightning = pytest.importorskip("lightning.pytorch")

import torchmetrics  # noqa: E402 - Lightning needs it

import ftcomm  # noqa: E402 - skipped before, where torch is missing
import ftcomm.torch as ft  # noqa: E402 - likewise
from ftcomm.requests import call_site  # noqa: E402 - likewise
from ftcomm.torch.lightning import FtcommStrategy, checkpoints  # noqa: E402 - likewise
from ftcomm.torch.lightning.metrics import metric_states, restore_metrics  # noqa: E402 - likewise

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def strategy() -> Iterator[FtcommStrategy]:
    with ft.init("none") as comm:
        yield FtcommStrategy(comm, every=1)


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, _: int) -> Any:
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(strategy: FtcommStrategy, loader: Any, *callbacks: Any, module: Any = None) -> Module:
    trainer = lightning.Trainer(
        strategy=strategy, max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[*callbacks],
    )  # fmt: skip
    module = module or Module()
    trainer.fit(module, loader)
    return module


def test_data_that_know_no_ranks_are_refused(strategy: FtcommStrategy) -> None:
    loader = torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=2)
    with pytest.raises(ftcomm.ConfigError, match="come from a plain DataLoader, which knows"):
        fit(strategy, loader)


def test_an_epoch_of_one_batch_is_refused(strategy: FtcommStrategy) -> None:
    with pytest.raises(ftcomm.ConfigError, match="an epoch has one batch"):
        fit(strategy, ft.DataLoader(torch.ones(2, 2), batch_size=2))


@pytest.mark.parametrize(
    "callback",
    [
        lightning.callbacks.GradientAccumulationScheduler({0: 2, 1: 1}),
        lightning.callbacks.StochasticWeightAveraging(0.1),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_callbacks_that_keep_no_state_are_refused(strategy: FtcommStrategy, callback: Any) -> None:
    name = type(callback).__name__
    with pytest.raises(ftcomm.ConfigError, match=f"{name} does not keep all of its state"):
        fit(strategy, ft.DataLoader(torch.ones(8, 2), batch_size=2), callback)


def test_two_averages_of_weights_are_refused(strategy: FtcommStrategy) -> None:
    """A restarted rank would train on with the first of them as its weights."""
    if not hasattr(lightning.callbacks, "EMAWeightAveraging"):
        pytest.skip("this Lightning has no such callback")
    both = lightning.callbacks.WeightAveraging(), lightning.callbacks.EMAWeightAveraging()
    with pytest.raises(ftcomm.ConfigError, match="several callbacks average weights"):
        fit(strategy, ft.DataLoader(torch.ones(8, 2), batch_size=2), *both)


def test_a_search_for_the_rate_is_refused(strategy: FtcommStrategy) -> None:
    finder = lightning.callbacks.LearningRateFinder()
    with pytest.raises(ftcomm.ConfigError, match="LearningRateFinder trains before the training"):
        fit(strategy, ft.DataLoader(torch.ones(8, 2), batch_size=2), finder)


def test_an_optimizer_that_looks_at_a_ranks_own_loss_is_refused(strategy: FtcommStrategy) -> None:
    class Searching(Module):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters())

    with pytest.raises(ftcomm.ConfigError, match="LBFGS searches by each rank's own loss"):
        fit(strategy, ft.DataLoader(torch.ones(8, 2), batch_size=2), module=Searching())


def test_behind_the_fit_the_module_is_a_plain_one(strategy: FtcommStrategy) -> None:
    """Backward passes of one rank alone would end the job."""

    class Keeping(Module):
        def training_step(self, batch: Any, _: int) -> Any:
            self.loss = super().training_step(batch, _)  # and with it a graph
            return self.loss

    module = fit(strategy, ft.DataLoader(torch.ones(8, 2), batch_size=2), module=Keeping())
    assert strategy.model is module
    before = strategy._comm.seqno
    module.layer(torch.ones(1, 2)).sum().backward()
    assert strategy._comm.seqno == before


class Ending(Module):
    """A module with a hook of its own behind each batch."""

    def on_train_batch_end(self, *_: Any) -> None:
        self.batches_ended = getattr(self, "batches_ended", 0) + 1


def test_a_module_in_training_is_copied_and_pickled(strategy: FtcommStrategy) -> None:
    """As for an average of weights: the copy has the module's own hook, and is of no job."""
    copies: list[Any] = []

    class Copying(lightning.Callback):
        def on_train_batch_start(self, _: Any, pl_module: Any, *_others: Any) -> None:
            copies[:] = copy.deepcopy(pl_module), pickle.loads(pickle.dumps(pl_module))

    module = fit(
        strategy, ft.DataLoader(torch.ones(8, 2), batch_size=2), Copying(), module=Ending()
    )
    before = strategy._comm.seqno
    for each in copies:
        each.on_train_batch_end()
    assert [each.batches_ended for each in (module, *copies)] == [8, 8, 8]
    assert strategy._comm.seqno == before


def test_a_value_of_a_group_is_refused(strategy: FtcommStrategy) -> None:
    class Logging(Module):
        def training_step(self, batch: Any, _: int) -> Any:
            loss = super().training_step(batch, _)
            self.log("loss", loss, sync_dist=True, sync_dist_group="some ranks")
            return loss

    with pytest.raises(ftcomm.ConfigError, match=r"over a group, .* - leave out sync_dist_group="):
        fit(strategy, ft.DataLoader(torch.ones(8, 2), batch_size=2), module=Logging())
    assert strategy.all_gather(torch.ones(2), torch.distributed.group.WORLD).tolist() == [[1, 1]]
    with pytest.raises(ftcomm.ConfigError, match="over a group"):
        strategy.all_gather(torch.ones(2), group="some ranks")


def test_hooks_of_the_first_batch_reduce_as_those_of_later_ones(strategy: FtcommStrategy) -> None:
    """The first batch of a restarted rank is a later one of the others."""
    resuming = []

    class Logging(Module):
        def on_train_batch_start(self, *_: Any) -> None:
            resuming.append(strategy._is_resuming)

    fit(strategy, ft.DataLoader(torch.ones(8, 2), batch_size=2), module=Logging())
    assert resuming == [False] * 8


def test_a_callback_goes_on_with_the_file_that_it_puts_off() -> None:
    """Ranks write it together, so a restarted one must not do so earlier, later or never."""
    first, other = ([lightning.callbacks.ModelCheckpoint(save_last=True)] for _ in range(2))
    first[0]._last_global_step_saved, first[0]._defer_save_until_validation = 50, True
    checkpoints.restore_files(other, checkpoints.file_states(first))
    assert (other[0]._last_global_step_saved, other[0]._defer_save_until_validation) == (50, True)


class Measured(Module):
    """Metrics: one alone, and two that share a state."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torchmetrics.MeanMetric()
        kinds = [torchmetrics.MeanSquaredError(), torchmetrics.MeanSquaredError(squared=False)]
        self.errors = torchmetrics.MetricCollection(dict(zip("ab", kinds, strict=True)))

    def measure(self, value: float) -> None:
        self.mean.update(value)
        self.errors.update(torch.tensor([value]), torch.tensor([1.0]))


def test_messages_name_the_line_of_the_script_where_torchmetrics_makes_a_call() -> None:
    assert f"{Path(torchmetrics.__file__).parent}/" in call_site._folders


def test_metrics_go_on_where_they_were() -> None:
    first, other = Measured(), Measured()
    first.measure(2.0)
    first.measure(3.0)
    restore_metrics(other, copy.deepcopy(metric_states(first)))
    for module in (first, other):
        module.measure(7.0)
    assert other.mean.compute() == first.mean.compute() == 4
    assert other.errors.compute() == first.errors.compute()
    assert other.mean.update_count == 3


def test_an_average_that_begins_later_begins_with_the_weights_of_rank_0(
    strategy: FtcommStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else ranks that have made others would keep and validate other averages until then."""
    if not hasattr(lightning.callbacks, "EMAWeightAveraging"):
        pytest.skip("this Lightning has no such callback")
    first = {"layer.weight": torch.full((1, 2), 5.0), "layer.bias": torch.zeros(1)}
    found = {"checkpoint": {"state_dict": first}, "buffers": {}, "averages": [{}]}
    monkeypatch.setattr(checkpoints, "load", lambda *_, **__: ft.RestoredParts(0, found))
    monkeypatch.setattr(checkpoints, "save", lambda *_, **__: 1)
    average = lightning.callbacks.EMAWeightAveraging(update_starting_at_step=100)
    module = fit(strategy, ft.DataLoader(torch.ones(8, 2), batch_size=2), average)
    assert module.layer.weight.tolist() == [[5, 5]]


def test_buffers_of_an_average_that_no_state_dict_has_go_on_where_they_were(
    strategy: FtcommStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a restarted rank would average again from the buffers that its script begins with."""
    if not checkpoints._AVERAGING:
        pytest.skip("this Lightning has no such callback")

    class Counting(Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("batches", torch.zeros(()), persistent=False)

        def training_step(self, batch: Any, number: int) -> Any:
            self.batches += 1
            return super().training_step(batch, number)

    kept: list[dict[str, Any]] = []

    def save(_: Any, **parts: Any) -> int:
        kept.append(copy.deepcopy({**parts.pop("local"), **parts}))
        return len(kept)

    def fitted() -> tuple[float, float]:
        average = lightning.callbacks.WeightAveraging()
        loader = ft.DataLoader(torch.ones(8, 2), batch_size=2)
        module = fit(strategy, loader, average, module=Counting())
        return module.batches.item(), average._average_model.n_averaged.item()

    monkeypatch.setattr(checkpoints, "save", save)
    undisturbed = fitted()
    assert undisturbed == (4.5, 8)  # the mean of 1 to 8
    monkeypatch.setattr(checkpoints, "load", lambda *_, **__: ft.RestoredParts(2, kept[1]))
    assert fitted() == undisturbed


def test_a_data_module_goes_on_with_its_state(
    strategy: FtcommStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []

    class Data(lightning.LightningDataModule):
        def train_dataloader(self) -> Any:
            return ft.DataLoader(torch.ones(8, 2), batch_size=2)

        def state_dict(self) -> dict[str, Any]:
            return {"stage": 3}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            loaded.append(state)

    kept: list[dict[str, Any]] = []

    def save(_: Any, **parts: Any) -> int:
        kept.append(copy.deepcopy({**parts.pop("local"), **parts}))
        return len(kept)

    monkeypatch.setattr(checkpoints, "save", save)
    fit(strategy, Data())
    assert loaded == []
    monkeypatch.setattr(checkpoints, "load", lambda *_, **__: ft.RestoredParts(2, kept[1]))
    fit(strategy, Data())
    assert loaded == [{"stage": 3}]


class Noisy(torch.utils.data.Dataset):
    """Rows with noise that is drawn as they are read, as by augmentations."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> Any:
        return torch.rand(2) + row


def test_data_sets_draw_the_random_numbers_behind_the_checkpoint(
    strategy: FtcommStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a restarted rank would train on other rows in its first batch, and drop others out."""
    kept: list[dict[str, Any]] = []

    def save(_: Any, **parts: Any) -> int:
        kept.append(copy.deepcopy({**parts.pop("local"), **parts}))
        return len(kept)

    def fitted(seed: int) -> list[float]:
        torch.manual_seed(seed)
        module = fit(strategy, ft.DataLoader(Noisy(), batch_size=2))
        return [value for p in module.parameters() for value in p.flatten().tolist()]

    monkeypatch.setattr(checkpoints, "save", save)
    undisturbed = fitted(1)
    monkeypatch.setattr(checkpoints, "load", lambda *_, **__: ft.RestoredParts(2, kept[1]))
    assert fitted(2) == undisturbed


def test_batch_norms_over_all_ranks_are_refused(strategy: FtcommStrategy) -> None:
    trainer = lightning.Trainer(
        strategy=strategy, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, sync_batchnorm=True,
    )  # fmt: skip
    with pytest.raises(ftcomm.ConfigError, match="sync_batchnorm=True"):
        trainer.fit(Module(), ft.DataLoader(torch.ones(8, 2), batch_size=2))


def test_values_of_optimizers_keep_their_dtypes(strategy: FtcommStrategy) -> None:
    parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = torch.optim.NAdam([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = optimizer.state_dict()
    strategy.optimizers = [torch.optim.NAdam([parameter])]
    strategy.load_optimizer_state_dict({"optimizer_states": [state]})
    (found,) = strategy.optimizers
    assert found.state[parameter]["mu_product"].dtype is torch.float32


def test_checkpoints_are_kept_inside_of_epochs(strategy: FtcommStrategy) -> None:
    loader = ft.DataLoader(torch.ones(8, 2), batch_size=2)
    fit(strategy, loader)
    assert (loader.epoch, loader.position) == (2, 0)
    assert strategy._comm.version == 6  # of eight batches two are the last of an epoch


def test_what_one_rank_answers(strategy: FtcommStrategy) -> None:
    assert (strategy.is_global_zero, strategy.world_size) == (True, 1)
    assert strategy.broadcast({"a": 1}) == {"a": 1}
    assert strategy.reduce(3) == 3
    assert strategy.reduce(torch.tensor([2.0, 4.0]), reduce_op="sum").tolist() == [2, 4]
    assert strategy.reduce(torch.tensor(2.0)).item() == 2
    assert strategy.reduce(torch.tensor(3), group=None, reduce_op="mean").item() == 3
    assert strategy.reduce(torch.tensor(2), None, torch.distributed.ReduceOp.MAX).item() == 2
    with pytest.raises(ValueError, match="'premul_sum' is not a valid Op"):
        strategy.reduce(torch.tensor(2), reduce_op="premul_sum")
    assert strategy.all_gather(torch.ones(2)).tolist() == [[1, 1]]
    assert strategy.reduce_boolean_decision(True) is True
    with pytest.raises(ValueError, match="sync_grads=False"):
        strategy.all_gather(torch.ones(2), sync_grads=True)
    strategy.barrier()


def test_lightning_reduces_what_is_logged_and_leaves_the_samplers_alone(
    strategy: FtcommStrategy,
) -> None:
    reduced = []

    class Logging(Module):
        def training_step(self, batch: Any, _: int) -> Any:
            loss = super().training_step(batch, _)
            self.log("loss", loss, sync_dist=True)
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("rows", float(len(batch)), sync_dist=True, reduce_fx="sum")

    reduce = strategy.reduce
    strategy.reduce = lambda *a, **o: reduced.append(o["reduce_op"]) or reduce(*a, **o)
    trainer = lightning.Trainer(
        strategy=strategy, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    validation = torch.utils.data.DataLoader(torch.ones(5, 2), batch_size=2)
    trainer.fit(Logging(), ft.DataLoader(torch.ones(8, 2), batch_size=2), validation)
    assert [op for op in reduced if op != "sum"] == ["mean"] * 4
    assert trainer.callback_metrics["rows"].item() == 5
