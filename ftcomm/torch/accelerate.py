"""Accelerate on ftcomm: ``from ftcomm.torch.accelerate import Accelerator``.

Each rank runs the script on its share of the rows; gradients are averaged by `DDP`.  All that was
prepared is kept in the job's memory, within an epoch and at its end.  A restarted rank runs the
script from its begin: its passes over the training data are empty up to that of the checkpoint.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.utils.data

import ftcomm
from ftcomm.torch.checkpoints import load, save
from ftcomm.torch.data_loader import DataLoader
from ftcomm.torch.ddp import DDP
from ftcomm.torch.joined import init, is_joined, joined
from ftcomm.torch.parts import random_states, restore, restore_random_states, state_of
from ftcomm.torch.requirement import require_package
from ftcomm.torch.tensors import as_array, as_tensor

OLDEST = (1, 1)  # the oldest that was tested
_accelerate = require_package("accelerate", OLDEST)
ftcomm.passes_on(str(Path(_accelerate.__file__).parent))  # as it makes calls for the script

_BY_CHECKPOINTS = "leave it out: a restarted rank goes on from the job's checkpoint by itself"
_NO_OTHER_WAY = "leave it out, or use accelerate's own Accelerator without ftcomm"
_IN_THE_LOADER = "leave it out, and set the loader's batch_size to the rows of one rank"
_REFUSED_OPTIONS = {
    "deepspeed_plugin": _NO_OTHER_WAY,
    "deepspeed_plugins": _NO_OTHER_WAY,
    "fsdp_plugin": "use fully_shard with ftcomm.torch.save and load",
    "megatron_lm_plugin": _NO_OTHER_WAY,
    "torch_tp_plugin": _NO_OTHER_WAY,
    "parallelism_config": _NO_OTHER_WAY,
    "dynamo_backend": "compile the model before prepare()",
    "dynamo_plugin": "compile the model before prepare()",
    "split_batches": _IN_THE_LOADER,
    "dataloader_config": _IN_THE_LOADER,
    "rng_types": "leave it out: the order of rows is the same on all ranks",
    "kwargs_handlers": _NO_OTHER_WAY,
}
_REFUSED_NAMES = {
    "save_state": _BY_CHECKPOINTS,
    "load_state": _BY_CHECKPOINTS,
    "skip_first_batches": _BY_CHECKPOINTS,
    "register_save_state_pre_hook": _BY_CHECKPOINTS,
    "register_load_state_pre_hook": _BY_CHECKPOINTS,
    "join_uneven_inputs": "leave it out: all ranks have the same number of batches",
    "lomo_backward": "call backward() and step the optimizer",
    "deepspeed_plugin": _NO_OTHER_WAY,
}
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
            comm: the communicator; by default that of `ftcomm.torch.init`, which is called if it
                has not been.
            every: steps of the optimizer from one checkpoint within an epoch to the next; there is
                one at the end of each epoch too.
            options: of `accelerate.Accelerator`.

        Raises:
            ConfigError: one of the options is not supported; the message says which.
        """
        check_options(options)
        self._leaves_job = comm is None and not is_joined()
        self._comm = comm or (joined() if is_joined() else init())
        self._inner = _accelerate.Accelerator(**{**options, "cpu": True})
        check_inner(self._inner)
        for state in (_accelerate.PartialState(), _accelerate.state.AcceleratorState()):
            state.num_processes = (
                self._comm.world_size
            )  # by which schedulers step and loggers print
            state.process_index = state.local_process_index = self._comm.rank
        self._run = AcceleratedRun(self._comm, every)
        self._passes_without_step = 0  # of backward, as `accumulate` counts
        self._has_trigger = False

    def __getattr__(self, name: str) -> Any:
        """Take the rest from the Accelerator inside, or refuse it by name."""
        if name in _INNER_NAMES:
            return getattr(self._inner, name)
        if name in _REFUSED_NAMES:
            raise ftcomm.ConfigError(
                f"Accelerator.{name} is not supported on ftcomm", remedy=_REFUSED_NAMES[name]
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
        self._passes_without_step += 1
        is_last = self._run.is_last_batch and self._inner.gradient_state.sync_with_dataloader
        steps = self._inner.gradient_accumulation_steps
        self._inner.sync_gradients = is_last or self._passes_without_step % steps == 0
        if self._inner.sync_gradients:
            self._passes_without_step = 0
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
        self._has_trigger = True

    def check_trigger(self) -> bool:
        """Tell whether a rank has called `set_trigger`; a collective."""
        self._run.check_values()
        has_one, self._has_trigger = self._has_trigger, False
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
            return total.reshape(one.shape) * scale

        return tensor if reduction == "none" else _on_tensors(reduced, tensor)

    def pad_across_processes(
        self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False
    ) -> Any:
        """Tensors as large as the largest of all ranks along a dimension."""
        self._run.check_values()

        def padded(one: Any) -> Any:
            if dim >= one.dim():
                return one
            size = int(self._comm.allreduce(one.shape[dim], ftcomm.Op.MAX))
            shape = [*one.shape[:dim], size, *one.shape[dim + 1 :]]
            first = size - one.shape[dim] if pad_first else 0
            filled = one.new_full(shape, pad_index)
            filled.narrow(dim, first, one.shape[dim]).copy_(one)
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
        if isinstance(each, DDP | RankLoader) or getattr(each, "_is_accelerate_prepared", False):
            return each
        if isinstance(each, torch.nn.Module):
            model = self._inner.prepare_model(each)
            if not any(parameter.requires_grad for parameter in model.parameters()):
                return model
            self._run.add("model", model)
            return DDP(model, self._comm, broadcast=False)
        if isinstance(each, torch.optim.Optimizer):
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
        return each


class RankLoader(DataLoader):
    """A loader of this rank's rows, which tells the run where the script is.

    Attributes:
        remainder: rows of the last batches of all ranks, if others only fill them; else 0.
    """

    def __init__(
        self, dataset: Any, comm: ftcomm.Communicator, run: "AcceleratedRun", **options: Any
    ) -> None:
        """Begin at the first batch; `options` are those of `DataLoader`."""
        super().__init__(dataset, comm, **options)
        self._run = run
        rows = options["batch_size"] * comm.world_size
        self.remainder = 0 if options["drop_last"] else len(dataset) % rows

    def __iter__(self) -> Iterator[Any]:
        """The batches of one pass; none in a pass that was made before the restart."""
        if self._run.begin_pass(self):
            try:
                for batch in super().__iter__():
                    yield batch
                    self._run.end_batch(self)
                self._run.end_pass(self)
            finally:
                self._run.leave_pass(self)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing, as the loader counts its passes itself."""


class AcceleratedRun:
    """One run of a script: which part of its training it is in, and its checkpoints.

    Checkpoints lie between two batches, so there the script has begun the same calls on all ranks.
    Between the load and the place of the checkpoint in the script a restarted rank is alone.

    Attributes:
        completed_steps: of the optimizer that was prepared first.
        is_skipping: the script does again what was done before the checkpoint.
    """

    def __init__(self, comm: ftcomm.Communicator, every: int) -> None:
        self._comm, self._every = comm, every
        self._parts: dict[str, Any] = {}
        self._active: list[RankLoader] = []  # the innermost last
        self._is_loaded = self._counts_epochs = self._is_in_epoch = False
        self._random: dict[str, Any] = {}
        self._snapshot: dict[str, Any] = {}  # of the checkpoint, until its place is reached
        self._epoch = self._saved_at = self.completed_steps = 0
        self._passes_to_skip = self._passes = 0  # over the training data; those of this epoch
        self._has_stepped = False  # in this batch
        self._has_gathered = False  # between two passes
        self.is_skipping = False

    # --- what the script prepares and asks ------------------------------------------------------

    def add(self, kind: str, part: Any) -> None:
        """Keep `part` in the checkpoints.

        Raises:
            ConfigError: the checkpoint was loaded before, or there is a second model.
        """
        if self._is_loaded:
            raise ftcomm.ConfigError(
                f"the {kind} was added when the training had begun",
                remedy="prepare and register everything before the loop over the training data",
            )
        number = sum(name.startswith(kind) for name in self._parts)
        if kind == "model" and number:
            raise ftcomm.ConfigError(
                "a second model that is trained was prepared",
                remedy="put both in one module, and prepare that",
            )
        self._parts[f"{kind}{number}"] = part

    @property
    def is_last_batch(self) -> bool:
        """Tell whether the innermost loader has given its last batch."""
        return bool(self._active) and self._active[-1].position == len(self._active[-1])

    @property
    def rows_of_last_batch(self) -> int | None:
        """How many rows to keep of what is gathered; None: all."""
        return (self._active[-1].remainder or None) if self.is_last_batch else None

    def note_step(self, optimizer: Any, *_: Any) -> None:
        """Count a step of an optimizer."""
        self._has_stepped = True
        self.completed_steps += optimizer is self._parts["optimizer0"]

    def check_backward(self) -> None:
        """Refuse a backward pass in which a restarted rank would not be again.

        Raises:
            ConfigError: it is not in a loop over the training data.
        """
        if not (self._active and self._is_training(self._active[-1])):
            raise ftcomm.ConfigError(
                "backward() was called outside of a loop over the training data",
                remedy="pass the loader of the training data to prepare() as the first loader",
            )

    def check_values(self) -> None:
        """Refuse to gather where a restarted rank could not take part again.

        Raises:
            ConfigError: the script would gather before the place of a checkpoint.
        """
        is_between = self._is_loaded and not any(map(self._is_training, self._active))
        if self.is_skipping or (is_between and self._is_in_epoch and not self._passes):
            raise ftcomm.ConfigError(
                "the script gathers at the begin of an epoch, before its training data",
                remedy="gather within the loop over the training data, or behind it",
            )
        self._has_gathered |= is_between and not self._counts_epochs

    # --- where the script is --------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left, with a checkpoint behind each."""
        if self._is_loaded:
            raise ftcomm.ConfigError(
                "epochs() was called when the training had begun",
                remedy="loop over it once, around the whole training",
            )
        self._counts_epochs = True
        self._load()
        while self._epoch < count:
            self._is_in_epoch, self._passes = True, 0
            yield self._epoch
            self._is_in_epoch = False
            self._epoch += 1
            loader = self._parts["loader0"]
            if loader.position:  # the script has left the pass before its end
                loader.begin_next_epoch()
            if self._has_stepped:
                self._save()

    def begin_pass(self, loader: RankLoader) -> bool:
        """Begin a pass over a loader's rows; False: it was made before the restart.

        Raises:
            ConfigError: the script could not go on from a checkpoint in this pass.
        """
        is_resumed = False
        if self._is_training(loader):
            if not self._is_loaded:
                self._load()
            if self._passes_to_skip:
                self._skip_pass(loader)
                return False
            is_resumed = self.is_skipping
            self._end_skipping()
            self._check_pass()
            self._has_stepped = False
        if loader.position and not is_resumed:  # the script has left the pass before
            loader.begin_next_epoch()
        self._active.append(loader)
        return True

    def end_batch(self, loader: RankLoader) -> None:
        """Keep a checkpoint, if one is due, when the script asks for the next batch."""
        if not self._is_training(loader):
            return
        is_due = self.completed_steps - self._saved_at >= self._every
        if is_due and self._has_stepped and loader.position < len(loader):
            self._save()
        if loader.position < len(loader):
            self._has_stepped = False

    def end_pass(self, loader: RankLoader) -> None:
        """Keep a checkpoint, unless that is done at the end of the epoch."""
        if self._is_training(loader) and self._has_stepped and not self._counts_epochs:
            self._save()

    def leave_pass(self, loader: RankLoader) -> None:
        """Note that the script is outside of the loop over `loader`."""
        self._active.remove(loader)

    def _is_training(self, loader: RankLoader) -> bool:
        return loader is self._parts["loader0"]

    def _check_pass(self) -> None:
        self._passes += 1
        if self._counts_epochs and self._passes > 1:
            raise ftcomm.ConfigError(
                "the script passes over the training data twice in one epoch",
                remedy="make one pass in each of accelerator.epochs()",
            )
        if self._has_gathered:
            raise ftcomm.ConfigError(
                "the script gathers between two passes over the training data",
                remedy="loop over accelerator.epochs(count) in place of range(count)",
            )

    def _skip_pass(self, loader: RankLoader) -> None:
        self._passes_to_skip -= 1
        if not self._passes_to_skip and not loader.position:
            self._end_skipping()

    def _end_skipping(self) -> None:
        """Reach the place of the checkpoint, and undo what the script has done on the way."""
        for name, state in self._snapshot.items():
            restore(self._parts[name], state)
        if self.is_skipping:
            restore_random_states(self._random)
        self._snapshot, self.is_skipping = {}, False

    # --- checkpoints ----------------------------------------------------------------------------

    def _load(self) -> None:
        if "loader0" not in self._parts:
            raise ftcomm.ConfigError(
                "no loader was prepared, so nothing tells where the script is",
                remedy="pass the loader of the training data to prepare()",
            )
        if self._comm.version >= 0:
            raise ftcomm.ConfigError(
                "the job's state was loaded before this training, and it is loaded once",
                remedy="train with one Accelerator, and without ftcomm.torch.load",
            )
        self._is_loaded = True
        version, values = load(
            self._comm, local={"random": random_states()}, rng=False, epoch=0, steps=0,
            **self._parts,
        )  # fmt: skip
        self._epoch = values["epoch"]
        self._saved_at = self.completed_steps = values["steps"]
        if version == 0:
            return
        self._random = values["random"]
        restore_random_states(self._random)
        loader = self._parts["loader0"]
        self.is_skipping = bool(loader.position) or not self._counts_epochs
        if self.is_skipping:
            self._passes_to_skip = 0 if self._counts_epochs else loader.epoch
            self._snapshot = {
                name: copy.deepcopy(state_of(part)) for name, part in self._parts.items()
            }

    def _save(self) -> None:
        self._saved_at = self.completed_steps
        save(
            self._comm, local={"random": random_states()}, rng=False, epoch=self._epoch,
            steps=self.completed_steps, **self._parts,
        )  # fmt: skip


def check_options(options: dict[str, Any]) -> None:
    """Refuse what an Accelerator of ftcomm cannot do.

    Raises:
        ConfigError: the message says which option.
    """
    for name, remedy in _REFUSED_OPTIONS.items():
        if options.get(name):
            raise ftcomm.ConfigError(f"the Accelerator's {name} is not supported", remedy=remedy)
    precision = str(options.get("mixed_precision") or "no")
    if precision not in {"no", "bf16"}:
        raise ftcomm.ConfigError(
            f"mixed precision {precision} needs a GPU, and ftcomm trains on CPUs",
            remedy="use mixed_precision='bf16' or 'no'",
        )
    if torch.cuda.is_available() and not options.get("cpu"):
        raise ftcomm.ConfigError(
            "there is a GPU, and ftcomm carries tensors in host memory",
            remedy="pass cpu=True to train on the CPU",
        )


def check_inner(inner: Any) -> None:
    """Refuse what the environment has told accelerate.

    Raises:
        ConfigError: accelerate has made a group of its own.
    """
    kind = str(getattr(inner.distributed_type, "value", inner.distributed_type))
    if kind != "NO":
        raise ftcomm.ConfigError(
            f"accelerate has made a group of its own, {kind}",
            remedy="start the script by ftcomm-tracker run alone",
        )


def rank_loader(given: Any, comm: ftcomm.Communicator, run: AcceleratedRun) -> RankLoader:
    """A loader of this rank's rows, with the options of the `given` one.

    Raises:
        ConfigError: its rows cannot be shared out to the ranks.
    """
    sampler, kinds = given.sampler, torch.utils.data
    is_plain = type(given.batch_sampler) is kinds.BatchSampler and given.batch_size is not None
    is_shuffled = type(sampler) is kinds.RandomSampler and not sampler.replacement
    if not is_plain or not (is_shuffled or type(sampler) is kinds.SequentialSampler):
        kind = type(sampler if is_plain else given.batch_sampler).__name__
        raise ftcomm.ConfigError(
            f"the loader has a sampler of its own, {kind}, or data without a length",
            remedy="pass a loader with batch_size and shuffle, of a data set with a length",
        )
    seed = 0 if given.generator is None else given.generator.initial_seed() % 2**31
    names = (
        "num_workers", "collate_fn", "timeout", "worker_init_fn", "multiprocessing_context",
        "prefetch_factor", "persistent_workers",
    )  # fmt: skip
    return RankLoader(
        given.dataset, comm, run, batch_size=given.batch_size, seed=seed, shuffle=is_shuffled,
        drop_last=given.drop_last, **{name: getattr(given, name) for name in names},
    )  # fmt: skip


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
