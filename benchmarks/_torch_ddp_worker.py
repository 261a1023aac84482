"""One rank of `torch_ddp.py`: a step by each way in turn; rank 0 writes what they took."""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import ftcomm
import ftcomm.torch as ft

GLOO, GLOO_UNUSED, GLOO_FSDP = "gloo, DDP", "gloo, DDP that finds unused", "gloo, FSDP2"
OURS, BACKEND, FSDP = "ftcomm.torch.DDP", 'backend "ftcomm", DDP', 'backend "ftcomm", FSDP2'
# Each way is compared with the same over gloo.  The backend needs `find_unused_parameters=True`,
# which costs gloo a reduction more too; a script that comes from gloo did not pay for it.
PEERS = {
    GLOO: GLOO,
    GLOO_UNUSED: GLOO,
    OURS: GLOO,
    BACKEND: GLOO,
    GLOO_FSDP: GLOO_FSDP,
    FSDP: GLOO_FSDP,
}
ROWS = 32
WARM_UP = 5  # turns that are not counted
CHECKPOINT_EVERY = 10  # turns
Step = Callable[[], None]


def made(width: int) -> Any:
    """The same model on all ranks and in all ways."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width) for _ in range(3)]
    return torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])


def sharded(model: Any, group: Any) -> Any:
    """The model with each layer's parameters, and what is left, shared out over the group."""
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def step_of(model: Any, x: Any) -> Step:
    """One step of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def ways(comm: ftcomm.Communicator, width: int) -> dict[str, Step]:
    """The ways, each with a model of its own."""
    ddp = torch.nn.parallel.DistributedDataParallel
    group = dist.new_group(backend="ftcomm")
    models = {
        GLOO: ddp(made(width)),
        GLOO_UNUSED: ddp(made(width), find_unused_parameters=True),
        OURS: ft.DDP(made(width), comm),
        BACKEND: ddp(made(width), process_group=group, find_unused_parameters=True),
        GLOO_FSDP: sharded(made(width), dist.group.WORLD),
        FSDP: sharded(made(width), group),
    }
    x = torch.randn(ROWS, width, generator=torch.Generator().manual_seed(comm.rank))
    return {way: step_of(model, x) for way, model in models.items()}


def timed(steps: dict[str, Step], first: int) -> dict[str, float]:
    """Milliseconds of one step by each way, beginning with number `first`."""
    names = list(steps)
    found = {}
    for number in range(len(names)):
        way = names[(first + number) % len(names)]
        dist.barrier()
        began = time.perf_counter()
        steps[way]()
        found[way] = (time.perf_counter() - began) * 1000
    return found


def summary(turns: list[dict[str, float]], peers: dict[str, str]) -> dict[str, Any]:
    """Median milliseconds of each way, and median and quartiles of its ratio to its peer."""
    found = {}
    for way in turns[0]:
        ratios = [turn[way] / turn[peers[way]] for turn in turns]
        low, ratio, high = statistics.quantiles(ratios, n=4)
        ms = statistics.median(turn[way] for turn in turns)
        found[way] = {"ms": ms, "ratio": ratio, "low": low, "high": high}
    return found


def main() -> None:
    """Measure."""
    width, turns, store, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    torch.set_num_threads(1)
    with ft.init() as comm:
        place = {"rank": comm.rank, "world_size": comm.world_size}
        dist.init_process_group("gloo", init_method=f"file://{store}", **place)
        steps = ways(comm, width)
        ft.load(comm)
        found = []
        for turn in range(WARM_UP + turns):
            found.append(timed(steps, turn))
            if turn % CHECKPOINT_EVERY == 0:
                ft.save(comm)  # of nothing: what is logged may go
        dist.destroy_process_group()
        if comm.rank == 0:
            out.write_text(json.dumps(summary(found[WARM_UP:], PEERS)), encoding="utf-8")


if __name__ == "__main__":
    main()
