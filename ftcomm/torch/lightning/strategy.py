"""The strategy: what Lightning asks of all ranks together."""

from pathlib import Path
from typing import Any

import lightning
import torch
import torchmetrics
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_only

import ftcomm
from ftcomm.torch.ddp import DDP
from ftcomm.torch.lightning.checkpoints import (
    FITTING,
    LightningCheckpoints,
    check_callbacks,
    check_optimizers,
)
from ftcomm.torch.open_communicator import open_communicator
from ftcomm.torch.parts import restore
from ftcomm.torch.tensors import as_array, as_tensor

_ALIASES = {"avg": "mean", "product": "prod"}
for _package in (lightning, torchmetrics):  # as they make calls for the script
    ftcomm.passes_on(str(Path(_package.__file__).parent))


class FtcommStrategy(SingleDeviceStrategy):
    """All ranks of the job, each with one process and the CPU.

    Lightning puts no sampler of its own into a loader: training data come from a `DataLoader` of
    ftcomm, and every rank validates on all rows.

    Between the load and the step behind it a restarted rank is alone: the others were there before
    their first step.  So every rank answers itself there, as if all had the same value.
    """

    strategy_name = "ftcomm"

    def __init__(self, comm: ftcomm.Communicator | None = None, *, every: int = 50) -> None:
        """Join the job.

        Args:
            comm: the communicator; by default that of `ftcomm.current`, or of `ftcomm.init` where
                none is open.
            every: steps of the optimizer from one checkpoint to the next.
        """
        super().__init__(device="cpu")
        self._comm = comm or open_communicator() or ftcomm.init()
        self._every = every
        self._is_resuming = False
        self.global_rank, self.world_size = self._comm.rank, self._comm.world_size
        rank_zero_only.rank = self._comm.rank

    @property
    def is_global_zero(self) -> bool:
        """Tell whether this rank writes files and prints."""
        return bool(self.global_rank == 0)

    @property
    def is_distributed(self) -> bool:
        """True: else Lightning leaves `reduce` out of ``self.log(..., sync_dist=True)``."""
        return True

    def setup(self, trainer: Any) -> None:
        """Make the optimizers, wrap the module, and go on from the job's checkpoint.

        Raises:
            ConfigError: a callback or an optimizer could not go on as on the other ranks, or batch
                norms of all ranks are asked for.
        """
        if trainer.state.fn == FITTING:
            check_callbacks(trainer.callbacks)
            if trainer._accelerator_connector._layer_sync is not None:  # noqa: SLF001 - nothing else tells
                raise ftcomm.ConfigError(
                    "Trainer(sync_batchnorm=True): torch computes it on GPUs alone",
                    remedy="leave it out: rank 0's buffers are given to all ranks",
                )
        trainer._accelerator_connector.use_distributed_sampler = False  # noqa: SLF001 - it is no strategy's own
        super().setup(trainer)
        if trainer.state.fn != FITTING:
            return
        check_optimizers(self.optimizers)
        checkpoints = LightningCheckpoints(self._comm, trainer, self._every)
        checkpoints.load()
        trainer.callbacks.insert(0, checkpoints)  # others see what it has restored
        self.model = DDP(trainer.lightning_module, self._comm, broadcast=False)
        self._is_resuming = True

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """Restore the optimizers, whose values keep their dtypes."""
        states = checkpoint["optimizer_states"]
        for optimizer, state in zip(self.optimizers, states, strict=True):
            restore(optimizer, state)

    def end_resuming(self) -> None:
        """Note that all ranks are here: before all other hooks of a batch."""
        self._is_resuming = False

    def on_train_end(self) -> None:
        """Note that all ranks are here."""
        super().on_train_end()
        self.end_resuming()

    def teardown(self) -> None:
        """Leave the module to the script: its gradients are averaged in `fit` alone."""
        if isinstance(self.model, DDP):
            self.model.release()
            self.model = self.model.module
        super().teardown()

    def barrier(self, *_: Any, **_options: Any) -> None:
        """Wait for all ranks."""
        if not self._is_resuming:
            self._comm.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Take the object of one rank."""
        return obj if self._is_resuming else self._comm.broadcast_object(obj, src)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Combine a tensor over all ranks, by default as the mean, which is no integer.

        Raises:
            ConfigError: it is to be combined over a group.
        """
        check_group(group)
        if not isinstance(tensor, torch.Tensor):
            return tensor
        op = op_named(reduce_op)
        if op == ftcomm.Op.MEAN and not tensor.dtype.is_floating_point:
            tensor = tensor.to(torch.get_default_dtype())  # Lightning counts rows in integers
        if self._is_resuming:
            return tensor * self.world_size if op == ftcomm.Op.SUM else tensor
        array = as_array(tensor.detach().contiguous())
        return as_tensor(self._comm.allreduce(array.reshape(-1), op).reshape(array.shape))

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Stack the tensors of all ranks; gradients do not come back through it.

        Raises:
            ConfigError: those of a group are asked for.
        """
        check_group(None if group is torch.distributed.group.WORLD else group)  # as Lightning says
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


def check_group(group: Any) -> None:
    """Refuse a group, whose values would be mixed with those of all other ranks.

    Raises:
        ConfigError: there is one.
    """
    if group is not None:
        raise ftcomm.ConfigError(
            "a value is to be combined over a group, and FtcommStrategy combines over all ranks",
            remedy="leave out sync_dist_group= and group=",
        )


def op_named(reduce_op: Any) -> ftcomm.Op:
    """The operation that Lightning means by a name, one of torch's, or None for the mean.

    Raises:
        ValueError: ftcomm has no such operation.
    """
    name = "mean" if reduce_op is None else str(getattr(reduce_op, "name", reduce_op)).lower()
    return ftcomm.Op(_ALIASES.get(name, name))
