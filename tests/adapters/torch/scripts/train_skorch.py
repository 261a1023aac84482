"""A small training by skorch; it kills itself where it is told to."""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, EarlyStopping, EpochScoring, LRScheduler
from skorch.dataset import ValidSplit
from train import Kills, data, made, told

import ftcomm.torch as ft
from ftcomm.torch.broadcasting import broadcast_buffers
from ftcomm.torch.skorch import FtcommCallback

EPOCHS = 2  # of three steps each, by the split below


class Net(NeuralNetClassifier):
    """A net that tells `Kills` where its training is."""

    kills: Kills

    def train_step_single(self, batch: Any, **options: Any) -> Any:
        epoch = self.history[-1]
        self.kills.step = 3 * (epoch["epoch"] - 1) + len(epoch["batches"]) - 1
        return super().train_step_single(batch, **options)

    def on_grad_computed(self, *arguments: Any, **options: Any) -> None:
        super().on_grad_computed(*arguments, **options)
        self.kills.at("optimizer")


class Shrink(Callback):
    """Makes weights smaller when an epoch begins, which may be done once in an epoch alone."""

    def on_epoch_begin(self, net: Any, **_: Any) -> None:
        with torch.no_grad():
            for parameter in net.module_.parameters():
                parameter.mul_(0.9)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill", action="append", default=[], metavar="RANK.STEP.MOMENT")
    parser.add_argument("--stop-early", action="store_true", help="at the end of epoch 2 of 4")
    options = parser.parse_args()
    early = options.stop_early
    torch.set_num_threads(1)
    with ft.init() as comm:
        x, y = data(torch.float32).tensors
        kills = Kills(options.kill, comm.rank)
        module = made(kills, torch.float32)
        torch.manual_seed(100 + comm.rank)
        net = Net(
            module, criterion=torch.nn.CrossEntropyLoss, optimizer=torch.optim.AdamW, lr=0.01,
            batch_size=8, max_epochs=2 * EPOCHS if early else EPOCHS,
            train_split=ValidSplit(4), iterator_train__shuffle=True, iterator_train__seed=3,
            callbacks=[
                FtcommCallback(every=2),
                Shrink(),
                EpochScoring("accuracy", on_train=True, name="train_acc"),
                LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=2, step_every="batch"),
                EarlyStopping("train_loss", patience=1 if early else 9, threshold=0.99),
            ],
        )  # fmt: skip
        net.kills = kills
        net.fit(x, y)
        broadcast_buffers(comm, net.module_)
        model = told(net.module_)
        losses = net.history[:, "train_loss"]
        columns = ("valid_loss", "train_acc", "train_batch_count")
        rows = net.history[:, columns], [len(row["batches"]) for row in net.history]
        print("history", rows)
    print("losses", losses)
    print("model", model)


if __name__ == "__main__":
    main()
