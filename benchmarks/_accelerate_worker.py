"""One rank of `torch_frameworks.py` that trains by Accelerate."""

import itertools
from typing import Any

import accelerate
import torch
from _accelerate_states import own_states
from _framework_sides import GLOO, OURS, Rows, Training, measure
from _torch_ddp_worker import CHECKPOINT_EVERY, ROWS, made

from ftcomm.torch.accelerate import Accelerator


def train(accelerator: Any, training: Training) -> torch.nn.Module:
    """The loop of a script."""
    model = made(training.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = torch.utils.data.DataLoader(Rows(training), batch_size=ROWS, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x in itertools.islice(loader, training.steps):
        training.begin()
        accelerator.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    trained: torch.nn.Module = model
    return trained


def by_gloo(training: Training) -> torch.nn.Module:
    """The Accelerator of accelerate."""
    return train(accelerate.Accelerator(cpu=True), training)


def by_ftcomm(training: Training) -> torch.nn.Module:
    """The Accelerator of ftcomm."""
    return train(Accelerator(comm=training.comm, every=CHECKPOINT_EVERY, cpu=True), training)


if __name__ == "__main__":
    measure({GLOO: by_gloo, OURS: by_ftcomm}, own_states)
