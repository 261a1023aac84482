"""Gradients of four batches add up to a step, and checkpoints come between.

Ways: ``--way sync`` averages in each backward pass, ``--way no_sync`` in the fourth.  One layer
is used once, so ``zero_grad(set_to_none=False)`` leaves zeros that weight decay makes a step by.
"""

import argparse
import contextlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from torch import nn
from torch.utils.data import TensorDataset
from train import Kills, told

import ftcomm
import ftcomm.torch as ft

STEPS = 12  # batches of one rank


class Partly(nn.Module):
    """Two layers, of which the first batch alone uses the second."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.rare = nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor, *, first: bool) -> torch.Tensor:
        return self.used(x) + self.rare(x) if first else self.used(x)


def train(options: argparse.Namespace, comm: ftcomm.Communicator) -> str:
    kills = Kills(options.kill, comm.rank)
    torch.manual_seed(1)
    rows = torch.randn(3 * 8 * STEPS, 6)
    loader = ft.DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), comm, batch_size=8)
    model = ft.DDP(Partly(), comm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    parts = {"model": model, "optimizer": optimizer, "data": loader}
    rng = options.way == "sync"  # without it a local state has the gradients alone
    kills.step = ft.load(comm, rng=rng, **parts, step=0).values["step"]
    for x, y in loader:
        is_last = kills.step % 4 == 3
        is_own = options.way == "no_sync" and not is_last
        with model.no_sync() if is_own else contextlib.nullcontext():
            nn.functional.mse_loss(model(x, first=kills.step == 0), y).backward()
        kills.at("backward")
        if is_last:
            optimizer.step()
            optimizer.zero_grad(set_to_none=options.way == "no_sync")
        kills.step += 1
        if kills.step % 3 == 0:  # after 3 and 6 batches gradients are there, after 12 none
            ft.save(comm, rng=rng, step=kills.step, **dict(reversed(parts.items())))
        if kills.step == STEPS:
            break
    return told(model)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=["sync", "no_sync"], default="sync")
    parser.add_argument("--kill", action="append", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    with ft.init() as comm:
        model = train(options, comm)
    print("model", model)


if __name__ == "__main__":
    main()
