"""Sides of `torch_frameworks.py`: trainings of one process whose steps come in turns.

A framework has a loop of its own, so each side trains in a thread of its own.  A thread waits at
the begin of each batch until it is its turn, so only one thread computes at a time.
"""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _torch_ddp_worker import CHECKPOINT_EVERY, ROWS, WARM_UP, summary

import ftcomm
import ftcomm.torch as ft

GLOO, OURS = "gloo", "ftcomm"
POOL = 256  # rows in memory, which the data set repeats
SPARE = 4  # batches behind the last step, so that no epoch ends


@dataclass(frozen=True)
class Training:
    """The training of one side.

    Attributes:
        comm: the job's communicator.
        width: of the layers.
        steps: of the optimizer.
        folder: for files of this rank.
        begin: to be called at the begin of each batch.
    """

    comm: ftcomm.Communicator
    width: int
    steps: int
    folder: Path
    begin: Callable[[], None]


Train = Callable[[Training], torch.nn.Module]  # returns what was trained


class Rows:
    """Random rows, the same data set on all ranks and sides, enough for one epoch of all steps."""

    def __init__(self, training: Training, row: Callable[[Any], Any] = lambda x: x) -> None:
        """Give `row` of each tensor."""
        self._count = ROWS * training.comm.world_size * (training.steps + SPARE)
        generator = torch.Generator().manual_seed(0)
        self._pool = [row(x) for x in torch.randn(POOL, training.width, generator=generator)]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Any:
        return self._pool[number % POOL]


class Turns:
    """The order of the sides: in each turn each makes one step, and the order changes."""

    def __init__(self, sides: int) -> None:
        self._sides, self._number = sides, 0
        self._changed = threading.Condition()

    def wait(self, side: int) -> None:
        """Wait until it is this side's turn."""
        with self._changed:
            self._changed.wait_for(
                lambda: sum(divmod(self._number, self._sides)) % self._sides == side
            )

    def end(self) -> None:
        """Let the next side go on."""
        with self._changed:
            self._number += 1
            self._changed.notify_all()


@dataclass(frozen=True)
class Place:
    """The place of a side among the others.

    Attributes:
        number: of the side.
        turns: of all sides.
        group: over gloo, for what all sides do.
        enter: called whenever the side's turn begins.
    """

    number: int
    turns: Turns
    group: Any
    enter: Callable[[], None]


class Side:
    """One training.

    Attributes:
        milliseconds: of each step but the last, from the begin of its batch to that of the next:
            so reading a batch counts.
    """

    def __init__(self, place: Place, train: Train) -> None:
        """Train at this place."""
        self._place, self._train = place, train
        self._began: float | None = None
        self.milliseconds: list[float] = []

    def run(self, comm: ftcomm.Communicator, width: int, steps: int, folder: Path) -> None:
        """Train.  An error ends the process, as the other sides would wait."""
        try:
            self._resume()
            model = self._train(Training(comm, width, steps, folder, self._begin))
            check_alike(model, self._place.group)
            self._place.turns.end()
        except BaseException:  # noqa: BLE001 - whatever it is
            traceback.print_exc()
            os._exit(1)

    def _begin(self) -> None:
        """End the step before, if there is one, and begin the next when it is this side's turn."""
        if self._began is not None:
            self.milliseconds.append((time.perf_counter() - self._began) * 1000)
        self._place.turns.end()
        self._resume()
        self._place.group.barrier().wait()
        self._began = time.perf_counter()

    def _resume(self) -> None:
        self._place.turns.wait(self._place.number)
        self._place.enter()


def check_alike(model: torch.nn.Module, group: Any) -> None:
    """Check that ranks, which had other rows, have the same weights.

    Raises:
        AssertionError: they have not, so gradients were not averaged.
    """
    for parameter in model.parameters():
        first = parameter.detach().clone()
        group.broadcast(first, 0).wait()
        if not torch.equal(parameter, first):
            raise AssertionError("ranks have trained other weights")


def environment_of(way: str, comm: ftcomm.Communicator) -> dict[str, str]:
    """Variables as torchrun sets them, for sides over gloo."""
    if way == OURS:
        return {}
    rank, world_size = str(comm.rank), str(comm.world_size)
    return {
        "RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": "0", "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "benchmark",
    }  # fmt: skip


def entering(
    way: str, comm: ftcomm.Communicator, group: Any, enter: Callable[[], None]
) -> Callable[[], None]:
    """Make a function for the begin of a turn: the side gets its own environment; then `enter`.

    A job on ftcomm has no default group of torch.  Frameworks look for one in each step, and with
    one they would make more calls.
    """
    own, names = environment_of(way, comm), environment_of(GLOO, comm)

    def begin_turn() -> None:
        dist.group.WORLD = None if way == OURS else group
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(own)
        enter()

    return begin_turn


def counted(sides: dict[str, Side]) -> list[dict[str, float]]:
    """Milliseconds by each way in each turn that counts: those with a checkpoint do not."""
    steps = zip(*(side.milliseconds for side in sides.values()), strict=True)
    return [
        dict(zip(sides, step, strict=True))
        for number, step in enumerate(steps, 1)
        if number > WARM_UP and number % CHECKPOINT_EVERY
    ]


def measure(
    ways: dict[str, Train],
    enter_of: Callable[[], Callable[[], None]] = lambda: lambda: None,
) -> None:
    """Train by each way in turns, and have rank 0 write what the steps took.

    Args:
        ways: with `OURS`, which trains in the process's first thread, and `GLOO`, with which all
            are compared.
        enter_of: makes for each side what it calls whenever its turn begins.
    """
    width, steps, folder = int(sys.argv[1]), WARM_UP + int(sys.argv[2]) + 1, Path(sys.argv[3])
    torch.set_num_threads(1)
    with ft.init() as comm:
        place = {"rank": comm.rank, "world_size": comm.world_size}
        dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", **place)
        turns, group = Turns(len(ways)), dist.group.WORLD
        sides = {
            way: Side(Place(number, turns, group, entering(way, comm, group, enter_of())), train)
            for number, (way, train) in enumerate(ways.items())
        }
        arguments = (comm, width, steps, folder / f"rank-{comm.rank}")
        threads = [
            threading.Thread(target=side.run, args=arguments)
            for way, side in sides.items()
            if way != OURS
        ]
        for thread in threads:
            thread.start()
        sides[OURS].run(*arguments)
        for thread in threads:
            thread.join()
        dist.group.WORLD = group
        dist.destroy_process_group()
        if comm.rank == 0:
            found = summary(counted(sides), dict.fromkeys(ways, GLOO))
            (folder / "figures").write_text(json.dumps(found), encoding="utf-8")
