"""skorch on ftcomm: ``NeuralNet(..., callbacks=[FtcommCallback()])``.

Each rank fits a net of its own on its share of the rows; gradients are averaged where backward
leaves them.  Modules, optimizer, history, callbacks, random numbers and the position in the data
are kept in the job's memory, and a restarted rank goes on from there, by itself.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data

import ftcomm
from ftcomm.torch.broadcasting import broadcast_buffers
from ftcomm.torch.checkpoints import load, save
from ftcomm.torch.data_loader import DataLoader
from ftcomm.torch.gradient_bucket import BUCKET_BYTES
from ftcomm.torch.joined import init, is_joined, joined
from ftcomm.torch.parts import (
    keeps_state,
    random_states,
    restore,
    restore_random_states,
    state_of,
)
from ftcomm.torch.reducer import GradientReducer
from ftcomm.torch.requirement import require_package

OLDEST = (1, 2)  # the oldest that was tested
_skorch = require_package("skorch", OLDEST)
Callback: Any = _skorch.callbacks.Callback
ftcomm.passes_on(str(Path(_skorch.__file__).parent))  # as it makes calls for the script

_OWN_OPTIONS = ("sampler", "batch_sampler", "generator")  # of a loader, which ftcomm sets
_LEAVES = (bool, int, float, complex, str, bytes, np.generic, torch.Tensor)


class FtcommCallback(Callback):
    """Fits a net on all ranks of the job.

    It replaces the net's ``fit_loop`` for one call, as only there are all other callbacks ready
    and the number of epochs known.

    Attributes:
        every: steps of the optimizer from one checkpoint within an epoch to the next.
    """

    def __init__(self, every: int = 50) -> None:
        """Prepare to join: `ftcomm.torch.init` is called in `fit`, if it has not been.

        Args:
            every: as the attribute; there is one at the end of each epoch too.
        """
        self.every = every
        self._loop: FitLoop | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The callback without the job, for a net that is pickled or cloned."""
        return {**self.__dict__, "_loop": None}

    def on_train_begin(self, net: Any, **_: Any) -> None:
        """Join the job, and see that the net can go on after a restart."""
        check_net(net)
        comm = joined() if is_joined() else init()
        if comm.version >= 0:
            raise ftcomm.ConfigError(
                "the job's state was loaded before this fit, and it is loaded once",
                remedy="train all epochs by one fit() or partial_fit(), without ftcomm.torch.load",
            )
        self._loop = FitLoop(net, comm, self)
        net.fit_loop = self._loop.run

    def on_train_end(self, net: Any, **_: Any) -> None:
        """Release the net."""
        del net
        self._loop = None

    def on_epoch_begin(self, net: Any, **_: Any) -> None:
        """Go on in the middle of the epoch, where the checkpoint was there."""
        del net
        if self._loop is not None:
            self._loop.begin_epoch()

    def on_batch_begin(self, net: Any, training: bool = False, **_: Any) -> None:
        """Take rank 0's buffers before a step."""
        del net
        if training and self._loop is not None:
            self._loop.begin_step()

    def on_batch_end(self, net: Any, training: bool = False, **_: Any) -> None:
        """Keep a checkpoint within the epoch, if one is due."""
        del net
        if training and self._loop is not None:
            self._loop.end_step()

    def on_epoch_end(self, net: Any, **_: Any) -> None:
        """Keep a checkpoint between two epochs."""
        del net
        if self._loop is not None:
            self._loop.end_epoch()


class FitLoop:
    """One fit of a net: from the load to the last epoch."""

    def __init__(self, net: Any, comm: ftcomm.Communicator, callback: FtcommCallback) -> None:
        self._net, self._comm, self._callback = net, comm, callback
        self._others = [item for item in net.callbacks_ if item[1] is not callback]
        (self._own_item,) = [item for item in net.callbacks_ if item[1] is callback]
        self._iterator_train = net.iterator_train
        self._data: dict[str, Any] = {"epoch": 0, "position": 0}
        self._start: Any = None  # what all ranks begin with, once it is compared
        self._own: dict[str, Any] = {}  # of this rank, from the checkpoint
        self._loader: DataLoader
        self._trained: list[Any]
        self._steps = self._saved_at = 0  # of the optimizer
        self._has_stepped = False  # in this batch

    def run(self, X: Any, y: Any = None, epochs: int | None = None, **options: Any) -> Any:  # noqa: N803 - skorch's name
        """Fit as the net does, from the job's newest checkpoint if it has one."""
        net = self._net
        del net.fit_loop  # from here on it is the net's own again
        trained = trained_by(net)
        self._trained = [parameter for _, parameter in trained]
        reducer = GradientReducer(self._comm, trained[::-1], BUCKET_BYTES)
        steps = net.optimizer_.register_step_post_hook(self._note_step)
        self._load()
        net.callbacks_ = [
            *self._others,
            self._own_item,
        ]  # as nothing may follow a checkpoint
        net.iterator_train = self._make_loader
        total = net.max_epochs if epochs is None else epochs
        try:
            return net.fit_loop(X, y, epochs=max(0, total - self._data["epoch"]), **options)
        except KeyboardInterrupt:  # by which a callback ends the training
            self._count_batches()
            self._agree(stops=True)
            raise
        finally:
            net.callbacks_ = [*self._others, self._own_item]
            net.iterator_train = self._iterator_train
            reducer.remove()
            steps.remove()

    def begin_epoch(self) -> None:
        """Put the epoch's first part in place, and look at what is trained."""
        if self._data["position"]:
            self._net.callbacks_ = [*self._others, self._own_item]
            self._restore_own()  # skorch has added a row to the history
        now = [parameter for _, parameter in trained_by(self._net)]
        if len(now) != len(self._trained) or any(map(_is_other, now, self._trained)):
            raise ftcomm.ConfigError(
                "the net trains other parameters than at the beginning of fit",
                remedy="freeze, unfreeze or replace them before fit",
            )

    def begin_step(self) -> None:
        """Take rank 0's buffers, as `ftcomm.torch.DDP` does."""
        self._has_stepped = False
        self._broadcast_buffers()

    def end_step(self) -> None:
        """Keep a checkpoint, or end the rows of the epoch."""
        if self._loader.position == len(self._loader):
            self._average_losses()
            self._broadcast_buffers()  # so all ranks validate the same module
        elif self._has_stepped and self._steps - self._saved_at >= self._callback.every:
            self._save()

    def end_epoch(self) -> None:
        """Keep a checkpoint, unless gradients are left for the next epoch."""
        self._count_batches()
        self._agree(stops=False)
        if self._has_stepped:
            self._save()

    def _load(self) -> None:
        version, values = load(
            self._comm, local=self._own_state(), rng=False, gradients=False, start=None,
            data=self._data, **self._parts(),
        )  # fmt: skip
        self._data, self._start = dict(values["data"]), values["start"]
        if version:
            self._own = {name: values[name] for name in ("history", "callbacks", "random")}

    def _save(self) -> None:
        self._saved_at = self._steps
        save(
            self._comm, local=self._own_state(), rng=False, gradients=False, start=self._start,
            data=self._loader.state_dict(), **self._parts(),
        )  # fmt: skip

    def _parts(self) -> dict[str, Any]:
        """Modules, criteria and optimizers, by the names of the net's attributes."""
        net = self._net
        names = [f"{name}_" for name in (*net._modules, *net._criteria, *net._optimizers)]  # noqa: SLF001 - nothing else tells
        parts = {name: getattr(net, name) for name in names}
        return {name: part for name, part in parts.items() if keeps_state(part)}

    def _own_state(self) -> dict[str, Any]:
        """Content that differs between ranks: losses and scores are those of a rank's rows."""
        return {
            "history": list(self._net.history),
            "callbacks": {name: attributes_of(callback) for name, callback in self._others},
            "random": random_states(),
        }

    def _restore_own(self) -> None:
        """Go on with the history, the callbacks and the random numbers of the checkpoint."""
        self._net.history[:] = self._own["history"]
        for name, callback in self._others:
            restore_attributes(callback, self._own["callbacks"].get(name, {}))
        restore_random_states(self._own["random"])

    def _make_loader(self, dataset: Any, *, batch_size: int, **options: Any) -> DataLoader:
        """The net's loader of training data, for this rank's rows."""
        self._net.iterator_train = self._iterator_train
        check_data(dataset, options)
        if self._iterator_train is torch.utils.data.DataLoader:
            options.setdefault("shuffle", False)  # as that one does
        options["drop_last"] = True  # so losses are means over as many rows on each rank
        self._loader = DataLoader(dataset, self._comm, batch_size=batch_size, **options)
        self._loader.load_state_dict(self._data)
        self._compare_start({"rows": digest_of(dataset), "epochs": len(self._net.history)})
        if self._data["position"]:  # the others have begun this epoch before the checkpoint
            self._net.callbacks_ = [self._own_item]
        elif self._own:
            self._restore_own()
        return self._loader

    def _compare_start(self, start: dict[str, Any]) -> None:
        """See that all ranks, and a restarted one, split the data in the same way."""
        if self._start is not None:
            start["epochs"] = self._start["epochs"]
            starts = [start, self._start]
        else:
            starts = self._comm.allgather_object(start)
            self._start = start
        if any(other["rows"] != start["rows"] for other in starts):
            raise ftcomm.ConfigError(
                "the split into training and validation data differs between ranks or restarts",
                remedy="give train_split a random_state, as in ValidSplit(0.2, random_state=0)",
            )
        if any(other["epochs"] != start["epochs"] for other in starts):
            told = ", ".join(str(other["epochs"]) for other in starts)
            raise ftcomm.ConfigError(
                f"the histories of the ranks have {told} epochs at the beginning of fit",
                remedy="begin with the same net on all ranks",
            )

    def _count_batches(self) -> None:
        """Count those before the checkpoint too, where skorch has counted from there."""
        count = "train_batch_count"
        if self._data["position"] and count in self._net.history[-1]:
            self._net.history.record(count, len(self._loader))
        self._data["position"] = 0

    def _average_losses(self) -> None:
        """Give all ranks the same losses, as callbacks end the training or change rates by them."""
        rows = self._net.history[-1]["batches"]
        losses = np.array([row["train_loss"] for row in rows], np.float64)
        means = self._comm.allreduce(losses, op="mean")
        for row, mean in zip(rows, means.tolist(), strict=True):
            row["train_loss"] = mean

    def _broadcast_buffers(self) -> None:
        for part in self._parts().values():
            if isinstance(part, torch.nn.Module):
                broadcast_buffers(self._comm, part)

    def _agree(self, *, stops: bool) -> None:
        """See that all ranks end the training, or none."""
        stopping = int(self._comm.allreduce(int(stops)))
        if stopping not in {0, self._comm.world_size}:
            raise ftcomm.ConfigError(
                f"{stopping} of {self._comm.world_size} ranks end the training early",
                remedy="let callbacks decide by values that all ranks have, as valid_loss",
            ) from None

    def _note_step(self, *_: Any) -> None:
        self._steps += 1
        self._has_stepped = True


def check_net(net: Any) -> None:
    """Refuse a net that could not go on after a restart as the others do.

    Raises:
        ConfigError: the message says which part, and what to do.
    """
    optimizers = list(net._optimizers)  # noqa: SLF001 - nothing else tells
    kind = type(net.history).__name__
    callbacks = [type(callback) for _, callback in net.callbacks_]
    faults = {
        "a net of skorch.hf.AccelerateMixin places its own data": (
            hasattr(net, "accelerator"),
            "use ftcomm.torch.accelerate in a loop of your own, or a net without the mixin",
        ),
        f"the net is on {net.device}, and ftcomm carries tensors in host memory": (
            torch.device(net.device or "cpu").type != "cpu",
            "pass device='cpu'",
        ),
        f"the net has {len(optimizers)} optimizers, whose steps cannot be told apart": (
            len(optimizers) != 1,
            "train by one optimizer, or write the loop with ftcomm.torch.DDP",
        ),
        "LBFGS searches by each rank's own loss": (
            any(isinstance(getattr(net, f"{n}_"), torch.optim.LBFGS) for n in optimizers),
            "use an optimizer that makes one step of one gradient, such as Adam",
        ),
        f"the history is a {kind}, which has a store of its own": (
            not isinstance(net.history, list),
            "leave the net its own history",
        ),
        "LoadInitState begins with other files after a restart": (
            _skorch.callbacks.LoadInitState in callbacks,
            "leave it out: a restarted rank goes on from the job's checkpoint",
        ),
        "the net has more than one FtcommCallback": (
            callbacks.count(FtcommCallback) > 1,
            "leave one of them",
        ),
        f"iterator_train is {_name(net.iterator_train)}, which knows no ranks": (
            net.iterator_train not in {torch.utils.data.DataLoader, DataLoader},
            "leave the default, or pass ftcomm.torch.DataLoader",
        ),
    }
    for sentence, (is_so, remedy) in faults.items():
        if is_so:
            raise ftcomm.ConfigError(sentence, remedy=remedy)


def check_data(dataset: Any, options: Mapping[str, Any]) -> None:
    """Refuse training data that cannot be shared out to the ranks.

    Raises:
        ConfigError: they have no length, or an order of their own.
    """
    if not hasattr(dataset, "__len__"):
        raise ftcomm.ConfigError(
            "the training data have no length, so they cannot be shared out to the ranks",
            remedy="pass a data set with a length",
        )
    for name in _OWN_OPTIONS:
        if name in options:
            raise ftcomm.ConfigError(
                f"iterator_train__{name} is set, and the order of rows is ftcomm's",
                remedy="use iterator_train__shuffle=True and iterator_train__seed",
            )


def trained_by(net: Any) -> list[tuple[str, Any]]:
    """The parameters that a net trains, with their names.

    Raises:
        ValueError: there are none.
    """
    trained = [(name, p) for name, p in net.get_all_learnable_params() if p.requires_grad]
    if not trained:
        raise ValueError("the net has no parameter that requires a gradient")
    return trained


def digest_of(dataset: Any) -> str:
    """Digest of the number of rows, and of their numbers if they are some of a larger set."""
    digest = hashlib.sha256(str(len(dataset)).encode())
    while isinstance(dataset, torch.utils.data.Subset):
        digest.update(np.asarray(dataset.indices, np.int64).tobytes())
        dataset = dataset.dataset
    return digest.hexdigest()


def attributes_of(callback: Any) -> dict[str, Any]:
    """The attributes of a callback that a checkpoint can hold."""
    return {
        name: state_of(value)
        for name, value in vars(callback).items()
        if not isinstance(value, type) and (keeps_state(value) or is_plain(value))
    }


def restore_attributes(callback: Any, states: Mapping[str, Any]) -> None:
    """The inverse of `attributes_of`."""
    for name, state in states.items():
        value = getattr(callback, name, None)
        if keeps_state(value):
            restore(value, state)
        else:
            setattr(callback, name, state)


def is_plain(value: Any) -> bool:
    """Tell whether a state may hold `value`."""
    kind = type(value)
    if kind is dict or kind is OrderedDict:
        return _are_plain(value) and _are_plain(value.values())
    if kind is list or kind is tuple:
        return _are_plain(value)
    if kind is np.ndarray:
        return value.dtype.kind in "biufc"
    return value is None or isinstance(value, _LEAVES)


def _are_plain(values: Iterable[Any]) -> bool:
    return all(map(is_plain, values))


def _is_other(one: Any, other: Any) -> bool:
    return one is not other


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", type(value).__name__))
