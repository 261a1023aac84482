"""The way of a script through its training: its passes over the data, and its checkpoints."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.data

import ftcomm
from ftcomm.torch.checkpoints import load, save
from ftcomm.torch.data_loader import DataLoader
from ftcomm.torch.gradients import gradients_of, restore_gradients, trained_in
from ftcomm.torch.parts import random_states, restore, restore_random_states, state_of


class RankLoader(DataLoader):
    """A loader of this rank's rows, which tells the run where the script is."""

    def __init__(
        self, dataset: Any, comm: ftcomm.Communicator, run: "AcceleratedRun", **options: Any
    ) -> None:
        """Begin at the first batch; `options` are those of `DataLoader`."""
        super().__init__(dataset, comm, **options)
        self._run = run
        rows = options["batch_size"] * comm.world_size
        # Rows of the last batches of all ranks, if others only fill them; else 0.
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
        passes_without_step: of backward, as ``accumulate`` counts.
        has_trigger: this rank has something to tell in the next ``check_trigger``.
        is_skipping: the script does again what was done before the checkpoint.
    """

    def __init__(self, comm: ftcomm.Communicator, every: int) -> None:
        self._comm, self._every = comm, every
        self._parts: dict[str, Any] = {}
        self._active: list[RankLoader] = []  # the innermost last
        self._is_loaded = self._counts_epochs = self._is_in_epoch = False
        self._own: dict[str, Any] = {}  # of the checkpoint, as `_own_state` gives it
        self._snapshot: dict[str, Any] = {}  # of the checkpoint, until its place is reached
        self._gradients: dict[int, Any] = {}  # likewise
        self._epoch = self._saved_at = self.completed_steps = 0
        self._passes_to_skip = self._passes = 0  # over the training data; those of this epoch
        self._has_stepped = False  # in this batch
        self._has_gathered = False  # between two passes
        self.passes_without_step = 0
        self.has_trigger = self.is_skipping = False

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

    def check_wrapped(self, module: Any) -> None:
        """Refuse a wrapper that `prepare` has not made: nobody would keep its module.

        Raises:
            ConfigError: its `module` is not the model.
        """
        if module is not self._parts.get("model0"):
            raise ftcomm.ConfigError(
                "a DDP that the script has made was prepared, and its module is in no checkpoint",
                remedy="pass the module; prepare() wraps it",
            )

    @property
    def is_last_batch(self) -> bool:
        """Tell whether the innermost loader has given its last batch."""
        return bool(self._active) and self._active[-1].position == len(self._active[-1])

    @property
    def rows_of_last_batch(self) -> int | None:
        """Number of rows to keep of what is gathered; None: all."""
        return (self._active[-1].remainder or None) if self.is_last_batch else None

    def note_step(self, optimizer: Any, *_: Any) -> None:
        """Count a step of an optimizer."""
        self._has_stepped = True
        self.completed_steps += optimizer is self._parts["optimizer0"]

    def check_backward(self) -> None:
        """Refuse a backward pass in which a restarted rank would not be again.

        Raises:
            ConfigError: it is not in a loop over the training data, or no model was prepared.
        """
        if not (self._active and self._is_training(self._active[-1])):
            raise ftcomm.ConfigError(
                "backward() was called outside of a loop over the training data",
                remedy="pass the loader of the training data to prepare() as the first loader",
            )
        if "model0" not in self._parts:
            raise ftcomm.ConfigError(
                "no model that is trained was prepared, so its weights are in no checkpoint",
                remedy="pass the module to prepare(), without a DDP of your own",
            )

    def check_values(self) -> None:
        """Refuse to gather where a restarted rank could not take part again.

        Raises:
            ConfigError: the script would gather before the place of a checkpoint.
        """
        is_between = self._is_loaded and not any(map(self._is_training, self._active))
        if self.is_skipping or (is_between and self._is_in_epoch and not self._passes):
            raise ftcomm.ConfigError(
                "the script gathers at the beginning of an epoch, before its training data",
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
            self._restore_own()
            restore_gradients(trained_in(self._parts.values()), self._gradients)
        self._snapshot, self._gradients, self.is_skipping = {}, {}, False

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
            self._comm, local=self._own_state(), rng=False, epoch=0, steps=0, **self._parts,
        )  # fmt: skip
        self._epoch = values["epoch"]
        self._saved_at = self.completed_steps = values["steps"]
        if version == 0:
            return
        self._own = values
        self._restore_own()
        loader = self._parts["loader0"]
        self.is_skipping = bool(loader.position) or not self._counts_epochs
        if self.is_skipping:
            self._passes_to_skip = 0 if self._counts_epochs else loader.epoch
            self._snapshot = {
                name: copy.deepcopy(state_of(part)) for name, part in self._parts.items()
            }
            self._gradients = copy.deepcopy(gradients_of(trained_in(self._parts.values())))

    def _save(self) -> None:
        self._saved_at = self.completed_steps
        save(
            self._comm, local=self._own_state(), rng=False, epoch=self._epoch,
            steps=self.completed_steps, **self._parts,
        )  # fmt: skip

    def _own_state(self) -> dict[str, Any]:
        """Content that differs between ranks."""
        return {
            "random": random_states(),
            "passes": self.passes_without_step,
            "trigger": self.has_trigger,
        }

    def _restore_own(self) -> None:
        restore_random_states(self._own["random"])
        self.passes_without_step = self._own["passes"]
        self.has_trigger = self._own["trigger"]


def rank_loader(given: Any, comm: ftcomm.Communicator, run: AcceleratedRun) -> RankLoader:
    """A loader of this rank's rows, with the options of the `given` one; raises ConfigError."""
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
