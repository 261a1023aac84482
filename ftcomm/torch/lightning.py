"""Lightning on ftcomm: ``Trainer(strategy=FtcommStrategy())``.

The strategy averages gradients by `DDP`, and keeps Lightning's own checkpoint in the job's memory:
weights, optimizers, schedulers, loops, callbacks and the position in the data.  A restarted rank
goes on from there in `Trainer.fit`, by itself.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch import Callback
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_only

import ftcomm
from ftcomm.torch.broadcasting import broadcast_buffers
from ftcomm.torch.checkpoints import load, save
from ftcomm.torch.data_loader import DataLoader
from ftcomm.torch.ddp import DDP
from ftcomm.torch.joined import init, is_joined, joined
from ftcomm.torch.parts import random_states, restore_random_states
from ftcomm.torch.tensors import as_array, as_tensor

FITTING = "fit"
_ALIASES = {"avg": "mean", "product": "prod"}
ftcomm.passes_on(str(Path(lightning.__file__).parent))  # as it makes calls for the script


class FtcommStrategy(SingleDeviceStrategy):
    """All ranks of the job, each with one process and the CPU.

    It is no distributed strategy of Lightning's, which would put a sampler of its own into each
    loader: training data come from a `DataLoader` of ftcomm.

    Between the load and the step behind it a restarted rank is alone: the others were there before
    their first step.  So every rank answers itself there, as if all had the same value.
    """

    strategy_name = "ftcomm"

    def __init__(self, comm: ftcomm.Communicator | None = None, *, every: int = 50) -> None:
        """Join the job.

        Args:
            comm: the communicator; by default that of `ftcomm.torch.init`, which is called if it
                has not been.
            every: steps of the optimizer from one checkpoint to the next.
        """
        super().__init__(device="cpu")
        self._comm = comm or (joined() if is_joined() else init())
        self._every = every
        self._is_resuming = False
        self.global_rank, self.world_size = self._comm.rank, self._comm.world_size
        rank_zero_only.rank = self._comm.rank

    @property
    def is_global_zero(self) -> bool:
        """Tell whether this rank writes files and prints."""
        return bool(self.global_rank == 0)

    def setup(self, trainer: Any) -> None:
        """Make the optimizers, wrap the module, and go on from the job's checkpoint."""
        super().setup(trainer)
        if trainer.state.fn != FITTING:
            return
        checkpoints = LightningCheckpoints(self._comm, trainer, self._every)
        checkpoints.load()
        trainer.callbacks.append(checkpoints)
        self.model = DDP(trainer.lightning_module, self._comm, broadcast=False)
        self._is_resuming = True

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Note that training goes on."""
        super().on_train_batch_start(batch, batch_idx)
        self._is_resuming = False

    def on_train_end(self) -> None:
        """Note that all ranks are here."""
        super().on_train_end()
        self._is_resuming = False

    def barrier(self, *_: Any, **_options: Any) -> None:
        """Wait for all ranks."""
        if not self._is_resuming:
            self._comm.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Take the object of one rank."""
        return obj if self._is_resuming else self._comm.broadcast_object(obj, src)

    def reduce(self, tensor: Any, _group: Any = None, reduce_op: Any = "mean") -> Any:
        """Combine a tensor over all ranks, by default as the mean."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        op = op_named(reduce_op)
        if self._is_resuming:
            return tensor * self.world_size if op == ftcomm.Op.SUM else tensor
        array = as_array(tensor.detach().contiguous())
        return as_tensor(self._comm.allreduce(array.reshape(-1), op).reshape(array.shape))

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Stack the tensors of all ranks; gradients do not come back through it."""
        del group
        if sync_grads:
            raise ValueError("gradients do not pass ftcomm's all_gather: sync_grads=False")
        if self._is_resuming:
            return torch.stack([tensor.detach()] * self.world_size)
        return as_tensor(self._comm.allgather(as_array(tensor.detach().contiguous())))

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002 - Lightning's name
        """Decide alike on all ranks."""
        if self._is_resuming:
            return decision
        return bool(self._comm.allreduce(decision, ftcomm.Op.LAND if all else ftcomm.Op.LOR))


def op_named(reduce_op: Any) -> ftcomm.Op:
    """The operation that Lightning means by a name, one of torch's, or None for the mean.

    Raises:
        ValueError: ftcomm has no such operation.
    """
    name = "mean" if reduce_op is None else str(getattr(reduce_op, "name", reduce_op)).lower()
    return ftcomm.Op(_ALIASES.get(name, name))


class LightningCheckpoints(Callback):
    """Keeps Lightning's checkpoint in the job, and restores it.

    None is kept where Lightning 2.6 would not go on as the others: behind the last batch of an
    epoch or of the training, from where it makes one step more, and before a validation, which it
    leaves out.
    """

    def __init__(self, comm: ftcomm.Communicator, trainer: Any, every: int) -> None:
        self._comm, self._every = comm, every
        self._connector = trainer._checkpoint_connector  # noqa: SLF001 - nothing else makes one without a file
        self._random_states: Mapping[str, Any] | None = None
        self._end_batch: Callable[..., Any]  # the module's own hook, once training has begun
        self._saved_at = self._step = 0  # steps of the optimizer

    def load(self) -> None:
        """Restore the module and the callbacks; Lightning then restores what it has not made yet.

        On a fresh start all ranks get rank 0's weights.
        """
        module = self._connector.trainer.lightning_module
        fresh = {"state_dict": dict(module.state_dict())}
        own = {"random": random_states()}
        version, values = load(self._comm, local=own, rng=False, checkpoint=fresh)
        checkpoint = values["checkpoint"]
        if version == 0:
            module.load_state_dict(checkpoint["state_dict"])
            return
        self._random_states = values["random"]
        self._saved_at = self._step = checkpoint["global_step"]
        self._connector._loaded_checkpoint = checkpoint  # noqa: SLF001 - as above
        self._connector.restore_model()
        self._connector.restore_callbacks()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse data of which every rank would get the same rows, or that have no middle."""
        if not isinstance(trainer.train_dataloader, DataLoader):
            kind = type(trainer.train_dataloader).__name__
            raise ftcomm.ConfigError(
                f"the training data come from a {kind}, which knows no ranks",
                remedy="return an ftcomm.torch.DataLoader from train_dataloader()",
            )
        if trainer.num_training_batches < 2:
            raise ftcomm.ConfigError(
                "an epoch has one batch, and checkpoints are kept in the middle of epochs",
                remedy="use smaller batches, or a data set that repeats its rows",
            )
        # Lightning calls it behind all callbacks, and nothing of a batch may follow its checkpoint.
        self._end_batch = pl_module.on_train_batch_end
        pl_module.on_train_batch_end = self._end_and_keep

    def on_train_batch_start(self, *_: Any) -> None:
        """Go on with the random numbers of the checkpoint, whatever was drawn since."""
        if self._random_states is not None:
            restore_random_states(self._random_states)
            self._random_states = None

    def _end_and_keep(self, *arguments: Any) -> None:
        """End a batch; keep a checkpoint if it is due and the optimizer has just made a step."""
        self._end_batch(*arguments)
        trainer = self._connector.trainer
        step, before = trainer.global_step, self._step
        self._step = step
        is_due = step != before and step - self._saved_at >= self._every
        if is_due and not self._is_boundary(trainer):
            self._saved_at = step
            self._save()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the module its own hook back."""
        del trainer
        pl_module.__dict__.pop("on_train_batch_end", None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The same, where training ends by an error."""
        del exception
        self.on_train_end(trainer, pl_module)

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
        broadcast_buffers(self._comm, self._connector.trainer.lightning_module)
        checkpoint = self._connector.dump_checkpoint(weights_only=False)
        save(self._comm, local={"random": random_states()}, rng=False, checkpoint=checkpoint)
