"""Lightning's checkpoints, kept in the job's memory."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch import callbacks as lightning_callbacks

import ftcomm
from ftcomm.torch.broadcasting import broadcast_buffers
from ftcomm.torch.checkpoints import load, save
from ftcomm.torch.data_loader import DataLoader
from ftcomm.torch.gradients import gradients_of, restore_gradients
from ftcomm.torch.lightning.logged import logged_state, restore_logged
from ftcomm.torch.lightning.metrics import metric_states, restore_metrics
from ftcomm.torch.parts import (
    frozen_in,
    other_buffers,
    prepare_buffers,
    random_states,
    restore_buffers,
    restore_frozen,
    restore_random_states,
)

FITTING = "fit"

_WITHOUT_STATE = (
    lightning_callbacks.GradientAccumulationScheduler,
    lightning_callbacks.StochasticWeightAveraging,
)
_OWN = ("random", "logged", "metrics", "files", "frozen", "gradients")  # of a rank, till it goes on
# Of `ModelCheckpoint`, beside its state: whether it writes a file, in which all ranks take part.
_ABOUT_FILES = (
    "_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation",
)  # fmt: skip
_AVERAGING = getattr(lightning_callbacks, "WeightAveraging", ())  # of Lightning 2.6


class LightningCheckpoints(Callback):
    """Keeps Lightning's checkpoint in the job, and restores it.

    None is kept where Lightning 2.6 would not go on as the others: behind the last batch of an
    epoch or of the training, from where it makes one step more, and before a validation, which it
    leaves out.
    """

    def __init__(self, comm: ftcomm.Communicator, trainer: Any, every: int) -> None:
        self._comm, self._every = comm, every
        self._connector = trainer._checkpoint_connector  # noqa: SLF001 - nothing else makes one without a file
        self._own: Mapping[str, Any] | None = None  # of this rank, until the first batch
        self._saved_at = self._step = 0  # steps of the optimizer

    def load(self) -> None:
        """Restore the module and the callbacks; Lightning then restores what it has not made yet.

        On a fresh start all ranks get rank 0's weights.
        """
        module = self._connector.trainer.lightning_module
        fresh = {"state_dict": dict(module.state_dict())}
        version, values = load(
            self._comm, local=self._own_state({}), rng=False, checkpoint=fresh,
            buffers=other_buffers(module), averages=self._buffers_of_averages(),
        )  # fmt: skip
        checkpoint, buffers = values["checkpoint"], values["buffers"]
        weights = checkpoint.get("current_model_state", checkpoint["state_dict"])
        prepare_buffers(module, weights, buffers)
        restore_buffers(module, buffers)
        if version == 0:
            module.load_state_dict(weights)
            self._begin_averages(weights, buffers)
            return
        self._own = {name: values[name] for name in _OWN}
        self._saved_at = self._step = checkpoint["global_step"]
        checkpoint["callbacks"] = values["callbacks"]
        self._connector._loaded_checkpoint = checkpoint  # noqa: SLF001 - as above
        self._connector.restore_model()
        self._connector.restore_datamodule()
        self._connector.restore_callbacks()
        for average, others in zip(self._averages(), values["averages"], strict=True):
            restore_buffers(average, others)

    def _begin_averages(self, weights: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
        """Have averages of weights begin with rank 0's: each rank has copied its own before."""
        for average in self._averages():
            average.load_state_dict(weights)
            restore_buffers(average, buffers)

    def _averages(self) -> list[Any]:
        """The modules in which callbacks average weights and buffers."""
        return [
            callback._average_model.module  # noqa: SLF001 - nothing else gives it
            for callback in self._connector.trainer.callbacks
            if isinstance(callback, _AVERAGING)
        ]

    def _buffers_of_averages(self) -> list[dict[str, Any]]:
        """Buffers that the callbacks leave out of Lightning's checkpoint, equal on all ranks."""
        return [other_buffers(average) for average in self._averages()]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse data of which every rank would get the same rows, or that have no middle."""
        if not isinstance(trainer.train_dataloader, DataLoader):
            kind = type(trainer.train_dataloader).__name__
            raise ftcomm.ConfigError(
                f"the training data come from a plain {kind}, which knows no ranks",
                remedy="return an ftcomm.torch.DataLoader from train_dataloader()",
            )
        if trainer.num_training_batches < 2:
            raise ftcomm.ConfigError(
                "an epoch has one batch, and checkpoints are kept in the middle of epochs",
                remedy="use smaller batches, or a data set that repeats its rows",
            )
        trainer.train_dataloader.before_first_batch = self._restore_random
        # Lightning calls it behind all callbacks, and nothing of a batch may follow its checkpoint.
        pl_module.on_train_batch_end = KeepingHook(pl_module.on_train_batch_end, self._keep_if_due)

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Go on with the checkpoint's values, whatever came since."""
        trainer.strategy.end_resuming()  # other hooks of the batch may reduce what they log
        if self._own is not None:
            module = trainer.lightning_module
            restore_metrics(module, self._own["metrics"])
            restore_logged(trainer, self._own["logged"])
            restore_files(trainer.callbacks, self._own["files"])
            restore_frozen(module, self._own["frozen"])  # later than `DDP` looks at them
            if self._own["gradients"]:
                restore_gradients(module.parameters(), self._own["gradients"])
            self._own = None

    def _restore_random(self) -> None:
        """Go on with the checkpoint's random numbers, before data sets draw from them."""
        if self._own is not None:
            restore_random_states(self._own["random"])

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Take rank 0's buffers, if a callback behind this one adds them to an average."""
        if any(isinstance(each, _AVERAGING) for each in trainer.callbacks):
            broadcast_buffers(self._comm, pl_module)

    def _keep_if_due(self) -> None:
        """Keep a checkpoint if it is due and the optimizer has just made a step."""
        trainer = self._connector.trainer
        step, before = trainer.global_step, self._step
        self._step = step
        is_due = step != before and step - self._saved_at >= self._every
        if is_due and not self._is_boundary(trainer):
            self._saved_at = step
            self._save()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Take rank 0's buffers, so all ranks validate the same module."""
        # The check before the first step comes in a fresh start alone.
        if trainer.state.fn == FITTING and not trainer.sanity_checking:
            broadcast_buffers(self._comm, pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Take rank 0's buffers, and give the module its own hook back."""
        del trainer
        broadcast_buffers(self._comm, pl_module)
        _restore_hook(pl_module)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the module its own hook back, where training ends by an error."""
        del trainer, exception
        _restore_hook(pl_module)

    @staticmethod
    def _is_boundary(trainer: Any) -> bool:
        """Tell whether something else follows than the next batch of the epoch."""
        loop = trainer.fit_loop.epoch_loop
        is_over = trainer.should_stop or trainer.global_step >= trainer.max_steps >= 0
        validates = loop._should_check_val_fx(trainer.fit_loop._data_fetcher)  # noqa: SLF001 - nothing else tells
        return bool(is_over or validates or loop.batch_progress.is_last_batch)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """End the loader's epoch, as Lightning does not ask for a batch behind the last."""
        del pl_module
        trainer.train_dataloader.begin_next_epoch()

    def _save(self) -> None:
        module = self._connector.trainer.lightning_module
        broadcast_buffers(self._comm, module)
        checkpoint = self._connector.dump_checkpoint(weights_only=False)
        own = self._own_state(checkpoint.pop("callbacks", {}))
        save(
            self._comm, local=own, rng=False, checkpoint=checkpoint, buffers=other_buffers(module),
            averages=self._buffers_of_averages(),
        )  # fmt: skip

    def _own_state(self, callbacks: Mapping[str, Any]) -> dict[str, Any]:
        """Content that differs between ranks.

        Logged values and metrics are those of a rank's rows. Callbacks may keep them, and need not
        restore all that they give: `ModelCheckpoint` does not restore its current score. Gradients
        add up where the module steps its optimizers itself: each in a step of its own.
        """
        trainer = self._connector.trainer
        module = trainer.lightning_module
        return {
            "random": random_states(),
            "logged": logged_state(trainer),
            "metrics": metric_states(module),
            "files": file_states(trainer.callbacks),
            "frozen": frozen_in(module),
            "callbacks": callbacks,
            "gradients": {} if module.automatic_optimization else gradients_of(module.parameters()),
        }


class KeepingHook:
    """A module's own hook, and what keeps a checkpoint behind it.

    A copy or pickle of the module is one of no job: it has its own hook alone.
    """

    def __init__(self, own: Callable[..., Any], keep: Callable[[], None]) -> None:
        self._own, self._keep = own, keep

    def __call__(self, *arguments: Any, **options: Any) -> None:
        """Call the module's own hook first."""
        self._own(*arguments, **options)
        self._keep()

    def __deepcopy__(self, memo: Any) -> Any:
        """The hook of the copied module, as the method is bound to that."""
        return copy.deepcopy(self._own, memo)

    def __reduce__(self) -> Any:
        """The hook of the module that is pickled."""
        return _same, (self._own,)


def _same(hook: Any) -> Any:
    return hook


def _restore_hook(module: Any) -> None:
    module.__dict__.pop("on_train_batch_end", None)


def file_states(callbacks: Iterable[Any]) -> list[dict[str, Any]]:
    """Attributes of callbacks that write files, beside the states that Lightning keeps."""
    return [
        {name: getattr(each, name) for name in _ABOUT_FILES if hasattr(each, name)}
        for each in callbacks
        if isinstance(each, lightning_callbacks.ModelCheckpoint)
    ]


def restore_files(callbacks: Iterable[Any], states: Iterable[Mapping[str, Any]]) -> None:
    """The inverse of `file_states`."""
    writing = [each for each in callbacks if isinstance(each, lightning_callbacks.ModelCheckpoint)]
    for callback, state in zip(writing, states, strict=True):
        for name, value in state.items():
            setattr(callback, name, value)


def check_optimizers(optimizers: Iterable[Any]) -> None:
    """Refuse those that look at each rank's own loss; raises ConfigError."""
    if any(isinstance(each, torch.optim.LBFGS) for each in optimizers):
        raise ftcomm.ConfigError(
            "LBFGS searches by each rank's own loss, so ranks would make other backward passes",
            remedy="use an optimizer that makes one step of one gradient, such as Adam",
        )


def check_callbacks(callbacks: Iterable[Any]) -> None:
    """Refuse those that do not go on after a restart as on the other ranks; raises ConfigError."""
    callbacks = list(callbacks)
    if sum(isinstance(each, _AVERAGING) for each in callbacks) > 1:
        raise ftcomm.ConfigError(
            "several callbacks average weights, and Lightning's checkpoint holds one average",
            remedy="leave one of them",
        )
    for callback in callbacks:
        if isinstance(callback, lightning_callbacks.LearningRateFinder):
            raise ftcomm.ConfigError(
                "LearningRateFinder trains before the training, and a restarted rank would be "
                "alone in that",
                remedy="leave it out, and find the rate in a job of one rank",
            )
        if isinstance(callback, _WITHOUT_STATE):
            raise ftcomm.ConfigError(
                f"{type(callback).__name__} does not keep all of its state in checkpoints",
                remedy="leave it out: Trainer(accumulate_grad_batches=...) takes a number, and "
                "torch.optim.swa_utils.AveragedModel averages weights in the module",
            )
