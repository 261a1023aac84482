"""A training whose state is not plain: elements in another order, other dtypes, other buffers.

Convolutions are channels_last with a fused optimizer, NAdam keeps float32 beside float64, and a
buffer that is not in the state dict changes in each forward pass. A parameter is frozen on the way.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from torch import nn
from torch.utils.data import TensorDataset
from train import STEPS, InBackward, Kills, told

import ftcomm
import ftcomm.torch as ft


class Network(nn.Module):
    """Convolutions in float32, and a layer in float64."""

    def __init__(self, kills: Kills) -> None:
        super().__init__()
        self.images = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), InBackward(kills), nn.Conv2d(8, 8, 3)
        )
        self.scores = nn.Linear(8 * 4 * 4, 3).double()
        self.register_buffer("passes", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.passes += 1
        x = self.images(x) / self.passes
        return self.scores(x.flatten(1).double())


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(96, 3, 8, 8, generator=generator)
    return TensorDataset(x, x[:, :, 0, 0].argmax(1))


def train(options: argparse.Namespace, comm: ftcomm.Communicator) -> str:
    kills = Kills(options.kill, comm.rank)
    torch.manual_seed(1)
    model = ft.DDP(Network(kills).to(memory_format=torch.channels_last), comm)
    optimizer = torch.optim.AdamW(model.module.images.parameters(), lr=0.01, fused=True)
    other = torch.optim.NAdam(model.module.scores.parameters(), lr=0.01)
    loader = ft.DataLoader(data(), comm, batch_size=8)
    parts = {"model": model, "optimizer": optimizer, "other": other, "data": loader}
    kills.step = ft.load(comm, **parts, step=0).values["step"]
    while kills.step < STEPS:
        for x, y in loader:
            model.zero_grad()
            x = x.to(memory_format=torch.channels_last)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            other.step()
            kills.step += 1
            if kills.step == 1:  # which no restarted rank runs again
                model.module.images[0].weight.requires_grad_(requires_grad=False)
            if kills.step % 2 == 0:
                ft.save(comm, **parts, step=kills.step)
            if kills.step == STEPS:
                break
    return told(model)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill", action="append", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    with ft.init() as comm:
        model = train(options, comm)
    print("model", model)


if __name__ == "__main__":
    main()
