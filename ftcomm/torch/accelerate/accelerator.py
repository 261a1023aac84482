"""The Accelerator, which a script uses in place of accelerate's."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.utils.data

import ftcomm
from ftcomm.torch.accelerate.refusals import (
    REFUSED_NAMES,
    check_inner,
    check_optimizer,
    check_options,
)
from ftcomm.torch.accelerate.script_run import AcceleratedRun, RankLoader, rank_loader
from ftcomm.torch.ddp import DDP
from ftcomm.torch.open_communicator import open_communicator
from ftcomm.torch.requirement import require_accelerate
from ftcomm.torch.tensors import as_array, as_tensor

_accelerate = require_accelerate()
ftcomm.passes_on(str(Path(_accelerate.__file__).parent))  # as it makes calls for the script

_INNER_NAMES = (
    "autocast", "device", "free_memory", "get_tracker", "gradient_accumulation_steps",
    "mixed_precision", "optimizer_step_was_skipped", "profile", "project_configuration",
    "project_dir", "split_between_processes", "sync_gradients", "trackers", "unscale_gradients",
)  # fmt: skip


class Accelerator:
    """The Accelerator of one rank.

    What concerns one process alone is done by an `accelerate.Accelerator` inside.

    Attributes:
        completed_steps: of the optimizer that was prepared first, those before a restart too.
    """

    def __init__(
        self, *, comm: ftcomm.Communicator | None = None, every: int = 50, **options: Any
    ) -> None:
        """Join the job.

        Args:
            comm: the communicator; by default that of `ftcomm.current`, or of `ftcomm.init` where
                none is open.
            every: steps of the optimizer from one checkpoint within an epoch to the next; there is
                one at the end of each epoch too.
            options: of `accelerate.Accelerator`.

        Raises:
            ConfigError: one of the options is not supported; the message says which.
        """
        check_options(options)
        found = comm or open_communicator()
        self._leaves_job = found is None
        self._comm = found or ftcomm.init()
        self._inner = _accelerate.Accelerator(**{**options, "cpu": True})
        check_inner(self._inner)
        for state in (_accelerate.PartialState(), _accelerate.state.AcceleratorState()):
            state.num_processes = (
                self._comm.world_size
            )  # by which schedulers step and loggers print
            state.process_index = state.local_process_index = self._comm.rank
        self._run = AcceleratedRun(self._comm, every)

    def __getattr__(self, name: str) -> Any:
        """Take the rest from the Accelerator inside, or refuse it by name."""
        if name in _INNER_NAMES:
            return getattr(self._inner, name)
        if name in REFUSED_NAMES:
            raise ftcomm.ConfigError(
                f"Accelerator.{name} is not supported on ftcomm", remedy=REFUSED_NAMES[name]
            )
        raise AttributeError(f"the Accelerator of ftcomm has no attribute {name!r}")

    # --- ranks --------------------------------------------------------------------------------

    @property
    def num_processes(self) -> int:
        """Number of ranks."""
        return self._comm.world_size

    @property
    def process_index(self) -> int:
        """This rank."""
        return self._comm.rank

    @property
    def local_process_index(self) -> int:
        """This rank too: nothing tells which ranks are on one host."""
        return self._comm.rank

    @property
    def is_main_process(self) -> bool:
        """Tell whether this rank prints and writes files."""
        return self._comm.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """The same."""
        return self.is_main_process

    @property
    def is_last_process(self) -> bool:
        """Tell whether this rank is the last."""
        return self._comm.rank == self._comm.world_size - 1

    @property
    def use_distributed(self) -> bool:
        """Tell whether there are several ranks."""
        return self._comm.world_size > 1

    def wait_for_everyone(self) -> None:
        """Wait for all ranks; a rank that skips what was done before its restart does not."""
        if not self._run.is_skipping:
            self._comm.barrier()

    @contextlib.contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Have rank 0 do first what is inside."""
        if not self.is_main_process:
            self.wait_for_everyone()
        yield
        if self.is_main_process:
            self.wait_for_everyone()

    local_main_process_first = main_process_first

    def on_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function on rank 0, and nothing on others."""
        return function if self.is_main_process else _do_nothing

    on_local_main_process = on_main_process

    # --- training -----------------------------------------------------------------------------

    @property
    def completed_steps(self) -> int:
        """Steps of the optimizer that was prepared first, those before a restart too."""
        return self._run.completed_steps

    def prepare(self, *objects: Any, **_: Any) -> Any:
        """Prepare models, optimizers, loaders and schedulers; others are returned as they are.

        The first loader is that of the training data.

        Raises:
            ConfigError: one of them cannot go on after a restart.
        """
        first = [each if _is_scheduler(each) else self._prepared(each) for each in objects]
        done = [self._prepared(each) if _is_scheduler(each) else each for each in first]
        return done[0] if len(done) == 1 else tuple(done)

    prepare_model = prepare_optimizer = prepare_data_loader = prepare_scheduler = prepare

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Keep objects that have a ``state_dict``, equal on all ranks, in the checkpoints."""
        for each in objects:
            self._run.add("object", each)

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are left, in place of ``range(count)``.

        With it a script may gather and write files between two passes over the training data.
        """
        return self._run.epochs(count)

    def backward(self, loss: Any, **options: Any) -> None:
        """Compute gradients; their mean over all ranks, unless `accumulate` adds them up."""
        self._run.check_backward()
        (loss / self._inner.gradient_accumulation_steps).backward(**options)

    @contextlib.contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Add gradients up on this rank, but in each pass that a step follows."""
        run = self._run
        run.passes_without_step += 1
        is_last = run.is_last_batch and self._inner.gradient_state.sync_with_dataloader
        steps = self._inner.gradient_accumulation_steps
        self._inner.sync_gradients = is_last or run.passes_without_step % steps == 0
        if self._inner.sync_gradients:
            run.passes_without_step = 0
            yield
            return
        with contextlib.ExitStack() as stack:
            for model in models:
                stack.enter_context(self.no_sync(model))
            yield

    @contextlib.contextmanager
    def no_sync(self, model: Any) -> Iterator[None]:
        """Add gradients up on this rank alone."""
        with model.no_sync() if isinstance(model, DDP) else contextlib.nullcontext():
            yield

    def clip_grad_norm_(self, parameters: Any, max_norm: Any, norm_type: Any = 2) -> Any:
        """Clip gradients, which are the same on all ranks, by their norm."""
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: Any) -> None:
        """Clip each gradient."""
        torch.nn.utils.clip_grad_value_(parameters, clip_value)

    def unwrap_model(self, model: Any, **options: Any) -> Any:
        """The model that was passed to `prepare`."""
        return self._inner.unwrap_model(
            model.module if isinstance(model, DDP) else model, **options
        )

    def get_state_dict(self, model: Any, **_: Any) -> Any:
        """The state of the model that was passed to `prepare`."""
        return self.unwrap_model(model).state_dict()

    def set_trigger(self) -> None:
        """Tell the other ranks something, in their next `check_trigger`."""
        self._run.has_trigger = True

    def check_trigger(self) -> bool:
        """Tell whether a rank has called `set_trigger`; a collective."""
        self._run.check_values()
        has_one, self._run.has_trigger = self._run.has_trigger, False
        return bool(self._comm.allreduce(has_one, ftcomm.Op.LOR))

    # --- values of all ranks ------------------------------------------------------------------

    def gather(self, tensor: Any) -> Any:
        """The tensors of all ranks, one behind the other along the first dimension."""
        self._run.check_values()
        return _on_tensors(self._gathered, tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """The same, without rows that only filled the last batches; of objects, lists joined."""
        self._run.check_values()
        rows = slice(self._run.rows_of_last_batch)
        if use_gather_object or not _has_tensors_alone(input_data):
            gathered = self._comm.allgather_object(input_data)
            return [each for objects in gathered for each in objects][rows]
        return _on_tensors(lambda tensor: self._gathered(tensor)[rows], input_data)

    def reduce(self, tensor: Any, reduction: Any = "sum", scale: float = 1.0) -> Any:
        """The sum or mean of the tensors of all ranks, times `scale`."""
        self._run.check_values()

        def reduced(one: Any) -> Any:
            array = as_array(one.detach().contiguous())
            total = as_tensor(self._comm.allreduce(array.reshape(-1), reduction))
            total = total.reshape(one.shape)
            return total if scale == 1.0 else total * scale  # which rounds integers

        return tensor if reduction == "none" else _on_tensors(reduced, tensor)

    def pad_across_processes(
        self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False
    ) -> Any:
        """Tensors as large as the largest of all ranks along a dimension, where they have it."""
        self._run.check_values()

        def padded(one: Any) -> Any:
            if not -one.dim() <= dim < one.dim():
                return one
            place = dim % one.dim()
            size = int(self._comm.allreduce(one.shape[place], ftcomm.Op.MAX))
            shape = [*one.shape[:place], size, *one.shape[place + 1 :]]
            first = size - one.shape[place] if pad_first else 0
            filled = one.new_full(shape, pad_index)
            filled.narrow(place, first, one.shape[place]).copy_(one)
            return filled

        return _on_tensors(padded, tensor)

    def _gathered(self, tensor: Any) -> Any:
        rows = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach().contiguous()
        return as_tensor(self._comm.allgather(as_array(rows))).flatten(0, 1)

    # --- files and logs, of rank 0 --------------------------------------------------------------

    def print(self, *arguments: Any, **options: Any) -> None:
        """Print once."""
        if self._writes:
            print(*arguments, **options)  # noqa: T201 - as the script asks for

    def save(self, obj: Any, f: Any, **options: Any) -> None:
        """Write a file by `torch.save`, or by safetensors."""
        self._write("save", obj, f, **options)

    def save_model(self, model: Any, save_directory: Any, **options: Any) -> None:
        """Write the weights of a model."""
        self._write("save_model", self.unwrap_model(model), save_directory, **options)

    def init_trackers(self, *arguments: Any, **options: Any) -> None:
        """Start the trackers of ``log_with``."""
        self._write("init_trackers", *arguments, **options)

    def log(self, *arguments: Any, **options: Any) -> None:
        """Send values to the trackers."""
        self._write("log", *arguments, **options)

    def end_training(self) -> None:
        """End the trackers, and leave the job if this Accelerator has joined it."""
        self._write("end_training")
        if self._leaves_job:
            self._comm.close()

    @property
    def _writes(self) -> bool:
        return self.is_main_process and not self._run.is_skipping

    def _write(self, name: str, *arguments: Any, **options: Any) -> None:
        if self._writes:
            getattr(self._inner, name)(*arguments, **options)

    def _prepared(self, each: Any) -> Any:
        if isinstance(each, DDP):
            self._run.check_wrapped(each.module)
        if isinstance(each, DDP | RankLoader) or getattr(each, "_is_accelerate_prepared", False):
            return each
        if isinstance(each, torch.nn.Module):
            model = self._inner.prepare_model(each)
            if not any(parameter.requires_grad for parameter in model.parameters()):
                self._run.add("frozen model", model)  # the script may change it, as an average
                return model
            self._run.add("model", model)
            return DDP(model, self._comm, broadcast=False)
        if isinstance(each, torch.optim.Optimizer):
            check_optimizer(each)
            each.register_step_post_hook(self._run.note_step)
            self._run.add("optimizer", each)
            return self._inner.prepare_optimizer(each)
        if isinstance(each, torch.utils.data.DataLoader):
            loader = rank_loader(each, self._comm, self._run)
            self._run.add("loader", loader)
            return loader
        if _is_scheduler(each):
            self._run.add("scheduler", each)
            return self._inner.prepare_scheduler(each)
        if hasattr(each, "state_dict"):
            raise ftcomm.ConfigError(
                f"prepare() does not know the class {type(each).__name__}, nor keep its state",
                remedy="pass it to register_for_checkpointing()",
            )
        return each


def _is_scheduler(each: Any) -> bool:
    return isinstance(each, torch.optim.lr_scheduler.LRScheduler)


def _on_tensors(function: Callable[[Any], Any], data: Any) -> Any:
    """`data` with `function` of each tensor in its lists, tuples and dicts."""
    return _accelerate.utils.recursively_apply(function, data, error_on_other_type=True)


def _has_tensors_alone(data: Any) -> bool:
    try:
        _on_tensors(lambda tensor: tensor, data)
    except TypeError:
        return False
    return True


def _do_nothing(*_: Any, **_options: Any) -> None:
    """Stand for a function that another rank calls."""
