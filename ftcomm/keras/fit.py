"""The fit of Keras that a `Training` takes part in: its callbacks, and what it may not be."""

import sys
from traceback import walk_stack
from typing import Any

import keras

import ftcomm


def callbacks_of_fit() -> list[Any]:
    """All callbacks of the fit that has called one of them; nothing else tells a callback."""
    for frame, _ in walk_stack(sys._getframe()):  # noqa: SLF001 - likewise
        owner = frame.f_locals.get("self")
        if isinstance(owner, keras.callbacks.CallbackList):
            return list(owner.callbacks)
    return []


def check_fit(model: Any, callbacks: list[Any], training: Any, average: str) -> None:
    """Refuse what would be other on another rank, or in a restarted one.

    Args:
        model: that is to be fit.
        callbacks: of the fit, those of Keras itself too.
        training: the one that takes part in the job.
        average: ``gradients`` or ``weights``.

    Raises:
        ConfigError: the message names the argument or the callback.
    """
    by_gradients = average == "gradients"
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    refused = [
        (
            callbacks[:1] != [training],
            "there are callbacks before Training, which would see the logs of this rank alone",
            "put it first in callbacks=",
        ),
        (
            any(isinstance(each, keras.callbacks.BackupAndRestore) for each in callbacks),
            "BackupAndRestore goes on from a checkpoint of its own, of another step",
            "leave it out",
        ),
        (
            model.distribute_strategy.num_replicas_in_sync > 1,
            "the model is for a tf.distribute strategy of several replicas",
            "leave the strategy out, and start a rank for each replica",
        ),
        (
            model.steps_per_execution != 1,
            "steps_per_execution is above 1, and checkpoints come between single steps",
            "leave it out of compile()",
        ),
        (
            by_gradients and bool(model.jit_compile),
            "XLA compiles the step, and gradients cannot be averaged inside of it",
            "call compile(jit_compile=False), or average weights",
        ),
        (
            not by_gradients and optimizer.use_ema,
            "use_ema=True would end with the moving average of each rank's own weights",
            "leave it out, or average gradients",
        ),
    ]
    for is_so, why, remedy in refused:
        if is_so:
            raise ftcomm.ConfigError(why, remedy=remedy)


def other_data() -> ftcomm.ConfigError:
    """The error where a fit does not read the data of `Training`."""
    return ftcomm.ConfigError(
        "fit() reads other data than those of Training",
        remedy="call model.fit(training.data, callbacks=[training]), without steps_per_epoch",
    )
