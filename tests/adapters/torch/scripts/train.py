"""A small training in each of the ways that ftcomm.torch has; it kills itself where it is told to.

    python train.py --way ddp --kill 1.3.backward

Dropout, a batch norm, momentum, a schedule and a sampler make every step depend on all before it.
"""

import argparse
import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import TensorDataset

import ftcomm
import ftcomm.torch as ft
from ftcomm.torch.broadcasting import broadcast_buffers

STEPS, ROWS = 6, 96


class Kills:
    """SIGKILL for this process at a rank's step and moment, once each over all its restarts.

    At those of ``all`` it tells its number instead, and waits for the signal of the test.
    """

    def __init__(self, asked: list[str], rank: int) -> None:
        self._asked, self._rank = asked, rank
        self.step = 0

    def at(self, moment: str) -> None:
        name = f"{self._rank}.{self.step}.{moment}"
        mark = Path(f"killed-{name}")
        if name in self._asked and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if f"all.{self.step}.{moment}" in self._asked and not mark.exists():
            mark.touch()
            print("stands:", os.getpid(), flush=True)
            signal.pause()


class InBackward(nn.Module):
    """Passes its input on, and may die when the gradient comes back through it."""

    def __init__(self, kills: Kills) -> None:
        super().__init__()
        self._kills = kills

    def forward(self, x: Any) -> Any:
        if x.requires_grad:
            x.register_hook(lambda _: self._kills.at("backward"))
        return x


def made(kills: Kills, dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(16, 48), nn.BatchNorm1d(48), nn.ReLU(), InBackward(kills),
        nn.Dropout(0.2), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3),
    ).to(dtype)  # fmt: skip


def wrapped(way: str, model: nn.Sequential, comm: ftcomm.Communicator) -> nn.Module:
    if way == "ddp":
        return ft.DDP(model, comm, bucket_bytes=4096)
    ft.init_process_group()
    if way == "stock":
        ddp = nn.parallel.DistributedDataParallel
        return ddp(model, find_unused_parameters=True, bucket_cap_mb=0.004)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model


def told(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        digest.update(ft.as_array(whole.contiguous()).tobytes())
    return digest.hexdigest()


def data(dtype: torch.dtype) -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(ROWS, 16, generator=generator)
    return TensorDataset(x.to(dtype), x[:, :3].argmax(1))


class Noisy(TensorDataset):
    """Rows with noise that is drawn as they are read, as by augmentations."""

    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return x + torch.rand(x.shape), y


def train(options: argparse.Namespace, comm: ftcomm.Communicator) -> str:
    dtype = getattr(torch, options.dtype)
    kills = Kills(options.kill, comm.rank)
    model = wrapped(options.way, made(kills, dtype), comm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: kills.at("optimizer"))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    rows = Noisy(*data(dtype).tensors) if options.noise else data(dtype)
    workers = options.loader_workers
    loader = ft.DataLoader(rows, comm, batch_size=8, seed=3, num_workers=workers)
    torch.manual_seed(100 + comm.rank)
    parts = {
        "model": model, "optimizer": optimizer, "scheduler": scheduler, "data": loader,
    }  # fmt: skip
    kills.step = ft.load(comm, **parts, step=0).values["step"]
    while kills.step < STEPS:
        for x, y in loader:
            step(model, optimizer, x, y)
            scheduler.step()
            kills.step += 1
            if kills.step % options.every == 0:
                ft.save(comm, **parts, step=kills.step)
            if kills.step == STEPS:
                break
    broadcast_buffers(comm, model)  # each rank's last forward pass has changed its own
    return told(model)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Any, y: Any) -> None:
    loss: Callable[..., Any] = nn.functional.cross_entropy
    optimizer.zero_grad()
    loss(model(x).float(), y).backward()
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=["ddp", "stock", "fsdp"], default="ddp")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--every", type=int, default=2, help="steps of a version")
    parser.add_argument("--noise", action="store_true", help="is drawn as rows are read")
    parser.add_argument("--loader-workers", type=int, default=0)
    parser.add_argument("--kill", action="append", default=[], metavar="RANK.STEP.MOMENT")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with ft.init() as comm:
        model = train(options, comm)
    print("model", model)


if __name__ == "__main__":
    main()
