"""A small training by Lightning; it kills itself where it is told to."""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from torchmetrics import MeanMetric

sys.path.insert(0, str(Path(__file__).parent))

from train import STEPS, Kills, data, made, told

import ftcomm.torch as ft
from ftcomm.torch.lightning import FtcommStrategy


class Module(LightningModule):
    """The network of `train`."""

    def __init__(self, kills: Kills, *, monitors: bool) -> None:
        super().__init__()
        self.monitors = monitors
        self.network = made(kills, torch.float32)
        self.kills = kills
        first = next(self.network.parameters())
        self.mean = MeanMetric()
        self.average = torch.nn.Parameter(torch.zeros_like(first), requires_grad=False)

    def on_train_batch_start(self, *_: Any) -> None:
        if self.monitors:
            self.log("begun", float(self.trainer.global_step), sync_dist=True)

    def training_step(self, batch: Any, _: int) -> Any:
        self.kills.step = self.trainer.global_step
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.network(x), y)
        self.log("loss", loss, sync_dist=True, on_step=False, on_epoch=True)
        self.mean.update(loss.detach())
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        with torch.no_grad():
            self.average.lerp_(next(self.network.parameters()), 0.1)

    def validation_step(self, batch: Any, _: int) -> None:
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.network(x), y)
        self.log("validation loss", loss, sync_dist=True)

    def on_validation_end(self) -> None:
        if not self.trainer.sanity_checking:
            print("validated", self.trainer.global_step, told(self))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        optimizer.register_step_pre_hook(lambda *_: self.kills.at("optimizer"))
        if self.monitors:
            scheduler: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "monitor": "loss"},
            }
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1])
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_train_epoch_start(self) -> None:
        if self.trainer.current_epoch:
            print("loss", self.trainer.callback_metrics["loss"].item())
            print("mean", self.trainer.callback_metrics["mean"].item())


class ManualModule(Module):
    """Two optimizers, of which the second makes a step of the gradients of three batches.

    A buffer that is in no state dict changes in each batch.
    """

    def __init__(self, kills: Kills, *, monitors: bool) -> None:
        super().__init__(kills, monitors=monitors)
        self.automatic_optimization = False
        self.register_buffer("batches", torch.zeros(()), persistent=False)

    def training_step(self, batch: Any, number: int) -> None:
        self.batches += 1
        loss = super().training_step(batch, number) / self.batches
        first, second = self.optimizers()
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        if number % 3 == 2:
            second.step()
            second.zero_grad()

    def configure_optimizers(self) -> Any:
        cut = 4  # layers of the first optimizer
        first = torch.optim.AdamW(self.network[:cut].parameters(), lr=0.01)
        return first, torch.optim.SGD(self.network[cut:].parameters(), lr=0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill", action="append", default=[], metavar="RANK.STEP.MOMENT")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--monitor", action="store_true", help="let the rate follow the loss")
    parser.add_argument("--manual", action="store_true", help="step two optimizers in the module")
    parser.add_argument("--average", action="store_true", help="average weights by a callback")
    options = parser.parse_args()
    every, steps = (1, 8) if options.monitor else (2, STEPS)
    torch.set_num_threads(1)
    with ft.init() as comm:
        kind = ManualModule if options.manual else Module
        module = kind(Kills(options.kill, comm.rank), monitors=options.monitor)
        torch.manual_seed(100 + comm.rank)
        callbacks: list[Any] = [ModelCheckpoint("files", monitor="loss")] if options.monitor else []
        if options.average:
            callbacks.append(EMAWeightAveraging(decay=0.5))
        trainer = Trainer(
            strategy=FtcommStrategy(comm, every=every), max_steps=steps, logger=False,
            enable_checkpointing=options.monitor, callbacks=callbacks,
            enable_progress_bar=False, enable_model_summary=False,
            val_check_interval=2 if options.validate else None,
        )  # fmt: skip
        rows = data(torch.float32)
        validation = torch.utils.data.DataLoader(rows, batch_size=16) if options.validate else None
        loader = ft.DataLoader(rows, comm, batch_size=8, seed=3)
        trainer.fit(module, loader, validation)
        model = told(module)
    print("model", model)


if __name__ == "__main__":
    main()
