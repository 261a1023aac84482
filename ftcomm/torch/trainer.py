"""The Trainer of Hugging Face on ftcomm: ``from ftcomm.torch.trainer import Trainer``.

Each rank runs a Trainer of its own, on its share of the rows; gradients are averaged where backward
leaves them.  The Trainer's own checkpoints are kept in the job too, and a restarted rank resumes
from the newest one, by itself.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
import transformers

import ftcomm
from ftcomm.torch.broadcasting import broadcast_buffers
from ftcomm.torch.checkpoints import load, save
from ftcomm.torch.gradient_bucket import BUCKET_BYTES
from ftcomm.torch.open_communicator import open_communicator
from ftcomm.torch.parts import (
    frozen_in,
    random_states,
    restore_dtypes,
    restore_frozen,
    restore_random_states,
)
from ftcomm.torch.reducer import GradientReducer
from ftcomm.torch.sampler import SeededRows

_DRAWING_SAMPLERS = {
    "LengthGroupedSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler",
}  # fmt: skip
ftcomm.passes_on(str(Path(transformers.__file__).parent))  # as it makes calls for the script


class Trainer(transformers.Trainer):
    """A Trainer of one rank.

    Its checkpoints are those that ``save_strategy`` and ``save_steps`` ask for.  They are written
    to ``output_dir``, by other ranks than 0 to a folder ``rank-<number>`` in it.
    """

    def __init__(
        self, *arguments: Any, comm: ftcomm.Communicator | None = None, **options: Any
    ) -> None:
        """Join the job, and take this rank's share of the training data.

        Args:
            arguments: of `transformers.Trainer`.
            comm: the communicator; by default that of `ftcomm.current`, or of `ftcomm.init` where
                none is open.
            options: of `transformers.Trainer`.

        Raises:
            ConfigError: the training data have no length, or an argument keeps a restarted rank
                from going on as the others.
        """
        self._comm = comm or open_communicator() or ftcomm.init()
        super().__init__(*arguments, **options)
        check_arguments(self.args)
        self._frozen: list[str] = []  # at the checkpoint
        self._read = ReadBatches()
        if self._comm.rank:
            self.args.output_dir = str(Path(self.args.output_dir) / f"rank-{self._comm.rank}")
        whole: Any = self.train_dataset
        self.train_dataset: Any = None if whole is None else share_of(whole, self._comm)

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:
        """Train, from the job's newest checkpoint if it has one."""
        self.model_init = None  # or another model would be made, whose gradients nobody averages
        with self._averaged():
            return self._train_on(resume_from_checkpoint, options)

    def _train_on(self, resume_from_checkpoint: Any, options: dict[str, Any]) -> Any:
        # A restarted rank is alone between the load and the next step: no collective comes there.
        frozen = frozen_in(self.model)
        local: dict[str, Any] = {"files": {}, "read": None}
        version, values = load(self._comm, local=local, rng=False, model=self.model)
        self._frozen = frozen_in(self.model)
        restore_frozen(self.model, frozen)  # until there is an optimizer, of as many as before
        if version == 0:
            return super().train(resume_from_checkpoint, **options)
        # Otherwise `EarlyStoppingCallback` would start counting again.
        self.args.restore_callback_states_from_checkpoint = True
        self.args.eval_on_start = False  # the others did that before their first step
        with tempfile.TemporaryDirectory(prefix="ftcomm-trainer-") as folder:
            _write(Path(folder), values["files"])
            self._read.resume(values["read"], lambda: super(Trainer, self)._load_rng_state(folder))
            return super().train(folder, **options)

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        """Average the gradients of the backward passes inside; `reducer` hears of their begins."""
        trained = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        reducer = GradientReducer(self._comm, trained[::-1], BUCKET_BYTES)
        compute = self.compute_loss  # perhaps of the script's own class

        def compute_loss(*arguments: Any, **options: Any) -> Any:
            loss = compute(*arguments, **options)
            reducer.watch(loss)
            return loss

        own = vars(self).get("compute_loss")  # which a script may have set
        self.__dict__["compute_loss"] = compute_loss
        try:
            yield
        finally:
            reducer.remove()
            del self.__dict__["compute_loss"]
            if own is not None:
                self.__dict__["compute_loss"] = own

    def get_train_dataloader(self) -> Any:
        """The Trainer's own.

        Raises:
            ConfigError: its order of rows is one that a restarted rank could not make again, or
                its collator draws random numbers that it could not.
        """
        check_collator(self.data_collator)
        loader = super().get_train_dataloader()
        check_sampler(getattr(loader.batch_sampler, "sampler", None))
        seeded = SeededBatches(loader.batch_sampler, self._seed_of_epoch)
        batches = seeded if loader.num_workers else NotedBatches(loader.batch_sampler, self._read)
        # torch refuses another sampler behind its checks, which this one passes.
        vars(getattr(loader, "base_dataloader", loader))["batch_sampler"] = batches
        return loader

    def _seed_of_epoch(self) -> tuple[int, ...]:
        return self.args.seed % 2**64, int(self.state.epoch or 0), self._comm.rank

    def _load_rng_state(self, checkpoint: Any) -> None:
        if not self._read.is_resumed:  # else transformers would undo what was drawn since
            self._read.forget()
            super()._load_rng_state(checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        restore_frozen(self.model, self._frozen)
        path = Path(checkpoint or "") / transformers.trainer.OPTIMIZER_NAME
        if checkpoint is not None and path.is_file():
            optimizer: Any = self.optimizer
            optimizer = getattr(optimizer, "optimizer", optimizer)  # inside of accelerate's
            restore_dtypes(optimizer, torch.load(path, weights_only=True))

    def _maybe_log_save_evaluate(self, *arguments: Any, **options: Any) -> None:
        if self.control.should_evaluate:  # else ranks choose rates and best models by other losses
            broadcast_buffers(self._comm, self.model)
        super()._maybe_log_save_evaluate(*arguments, **options)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        broadcast_buffers(self._comm, self.model)
        super()._save_checkpoint(model, trial)
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            return  # transformers would resume from there with one step more
        if self._is_before_an_evaluation():
            return  # which transformers would leave out
        name = f"{transformers.trainer_utils.PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        files = _read(Path(self._get_output_dir(trial=trial)) / name)
        local = {"files": files, "read": self._read.last}
        save(self._comm, local=local, rng=False, model=self.model)

    def _is_before_an_evaluation(self) -> bool:
        """Tell whether an epoch's evaluation follows this checkpoint of its last step."""
        strategies = str(self.args.save_strategy.value), str(self.args.eval_strategy.value)
        return strategies == ("steps", "epoch") and float(self.state.epoch or 0).is_integer()


class ReadBatches:
    """The batches that were read, and the random numbers that data sets and collators drew.

    Accelerate reads a batch ahead: at a checkpoint the next one has been read already.  A restarted
    rank reads that with the random states from before, and the one behind it with the checkpoint's.

    Attributes:
        last: number within the epoch of the batch that was read last, and the random states before
            it; None if that is not known.
        is_resumed: the states of the checkpoint are in place.
    """

    def __init__(self) -> None:
        """Begin before the first batch."""
        self.last: tuple[int, dict[str, Any]] | None = None
        self.is_resumed = False
        self._steps: dict[int, Callable[[], None]] = {}  # by the number of the batch behind

    def resume(self, last: Any, restore: Callable[[], None]) -> None:
        """Go on behind a checkpoint in the middle of an epoch.

        Args:
            last: at the checkpoint.
            restore: puts the checkpoint's own random states in place.
        """
        if last is not None:
            number, states = last
            self._steps = {number: lambda: restore_random_states(states), number + 1: restore}

    def forget(self) -> None:
        """Begin with another epoch than that of the checkpoint."""
        self._steps = {}

    def begin(self, number: int) -> None:
        """Batch `number` is read next, or the epoch has no more."""
        if number in self._steps:
            self._steps.pop(number)()
            self.is_resumed = not self._steps
        self.last = number, random_states()


class _Batches:
    """A batch sampler in place of `batches`, with all its attributes."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


class NotedBatches(_Batches):
    """Batches that are read in this process."""

    def __init__(self, batches: Any, read: ReadBatches) -> None:
        """Tell `read` about `batches`."""
        super().__init__(batches)
        self._read = read

    def __iter__(self) -> Iterator[Any]:
        """The batches; each is read before the next one is asked for."""
        for number, rows in enumerate(self._batches):
            self._read.begin(number)
            yield rows
        self._read.begin(len(self))


class SeededBatches(_Batches):
    """Batches that worker processes read."""

    def __init__(self, batches: Any, key: Callable[[], tuple[int, ...]]) -> None:
        """Seed for each batch, by its number and the `key` of an epoch and a rank."""
        super().__init__(batches)
        self._key = key

    def __iter__(self) -> Iterator[Any]:
        """The batches."""
        key = self._key()
        for number, rows in enumerate(self._batches):
            yield SeededRows(rows, *key, number)


def check_arguments(arguments: Any) -> None:
    """Refuse what would let a restarted rank train other weights.

    Raises:
        ConfigError: the message names the argument.
    """
    faults = {
        "save_only_model": "its checkpoints have no optimizer, scheduler and random numbers",
        "ignore_data_skip": "a restarted rank would get the rows of the epoch's begin again",
        "auto_find_batch_size": "a rank that is short of memory would train in other batches",
    }
    for name, why in faults.items():
        if getattr(arguments, name, False):
            raise ftcomm.ConfigError(f"{name}=True: {why}", remedy=f"leave {name} False")


def check_sampler(sampler: Any) -> None:
    """Refuse an order that is drawn from the process's own generator, at the beginning of an epoch.

    Raises:
        ConfigError: the message names the sampler.
    """
    if type(sampler).__name__ in _DRAWING_SAMPLERS:
        raise ftcomm.ConfigError(
            f"the rows come from a {type(sampler).__name__}, whose order a restarted rank could "
            "not make again in the middle of an epoch",
            remedy="leave train_sampling_strategy and use_seedable_sampler as they are by default",
        )


def check_collator(collator: Any) -> None:
    """Refuse one that draws from its own generator, which starts again in a restarted rank.

    Raises:
        ConfigError: the message names the collator.
    """
    if hasattr(collator, "create_rng") and getattr(collator, "seed", None) is not None:
        raise ftcomm.ConfigError(
            f"the {type(collator).__name__} has a seed, by which a restarted rank would draw the "
            "first random numbers again",
            remedy="leave its seed None, so it draws from the generators that seed= of the "
            "arguments begins",
        )


def share_of(dataset: Any, comm: ftcomm.Communicator) -> Any:
    """The rows of one rank, as many as each other rank has.

    Raises:
        ConfigError: nothing tells how many rows there are.
    """
    if not hasattr(dataset, "__len__"):
        raise ftcomm.ConfigError(
            "the training data have no length, so they cannot be shared out to the ranks",
            remedy="pass a data set with a length",
        )
    whole = len(dataset) - len(dataset) % comm.world_size
    rows = range(comm.rank, whole, comm.world_size)
    if hasattr(dataset, "select"):  # of the package datasets, whose columns the Trainer looks at
        return dataset.select(rows)
    return torch.utils.data.Subset(dataset, rows)


def _read(folder: Path) -> dict[str, Any]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): np.fromfile(p, np.uint8) for p in paths}


def _write(folder: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content.tofile(path)
