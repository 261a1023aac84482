"""A small training by Accelerate; it kills itself where it is told to."""

import argparse
import copy
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from train import Kills, data, made, told

import ftcomm.torch as ft
from ftcomm.torch.accelerate import Accelerator
from ftcomm.torch.broadcasting import broadcast_buffers

EPOCHS = 2  # of three steps each: 70 rows give each of three ranks eight in a step


def accuracy(accelerator: Accelerator, model: torch.nn.Module, loader: Iterable[Any]) -> float:
    """Share of the rows of all ranks that the model classifies."""
    model.eval()
    hits = []
    for x, y in loader:
        with torch.no_grad():
            guessed = model(x).argmax(1)
        guessed, wanted = accelerator.gather_for_metrics((guessed, y))
        hits += (guessed == wanted).tolist()
    model.train()
    return sum(hits) / len(hits)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill", action="append", default=[], metavar="RANK.STEP.MOMENT")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of a step")
    parser.add_argument("--evaluate", action="store_true", help="behind each epoch")
    parser.add_argument("--per-epoch", action="store_true", help="step the schedule per epoch")
    parser.add_argument("--slow", action="store_true", help="step the last layer once an epoch")
    parser.add_argument("--every", type=int, default=2, help="steps of a version")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    with ft.init() as comm:
        accelerator = Accelerator(
            every=options.every,
            gradient_accumulation_steps=options.accumulate,
            step_scheduler_with_optimizer=not options.per_epoch,
        )
        kills = Kills(options.kill, accelerator.process_index)
        rows = torch.utils.data.Subset(data(torch.float32), range(70))
        model = made(kills, torch.float32)
        quick = model[:-1] if options.slow else model
        optimizer = torch.optim.AdamW(quick.parameters(), lr=0.01)
        slow = torch.optim.SGD(model[-1].parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: kills.at("optimizer"))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1 if options.per_epoch else 6)
        loaders = [
            torch.utils.data.DataLoader(
                rows, batch_size=size, shuffle=size == 8, generator=torch.Generator().manual_seed(3)
            )
            for size in (8 // options.accumulate, 7)
        ]
        average = copy.deepcopy(model).requires_grad_(requires_grad=False)
        model, average, optimizer, loader, validation, scheduler = accelerator.prepare(
            model, average, optimizer, *loaders, scheduler
        )
        if options.slow:
            slow = accelerator.prepare(slow)
        torch.manual_seed(100 + accelerator.process_index)
        accuracies = []
        for _ in accelerator.epochs(EPOCHS) if options.evaluate else range(EPOCHS):
            slow.zero_grad()
            for x, y in loader:
                kills.step = accelerator.completed_steps
                with accelerator.accumulate(model):
                    accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    if not options.per_epoch:
                        scheduler.step()  # three of them, as there are three ranks
                    optimizer.zero_grad()
                for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(parameter.detach(), 0.1)
            if options.slow:
                slow.step()
            if options.per_epoch:
                scheduler.step()
                torch.rand(1)  # neither may count twice
            if options.evaluate:
                accuracies.append(accuracy(accelerator, model, validation))
        broadcast_buffers(comm, model)
        accuracies.append(accuracy(accelerator, model, validation))
        last = accuracies[-1], accelerator.completed_steps, scheduler.get_last_lr()
        broadcast_buffers(comm, average)
        model = told(torch.nn.ModuleList([accelerator.unwrap_model(model), average]))
    print("last", last)
    print("model", model)


if __name__ == "__main__":
    main()
