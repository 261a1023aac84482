"""One rank of `torch_frameworks.py` that trains by Lightning."""

from typing import Any

import lightning
import torch
from _framework_sides import GLOO, OURS, Rows, Training, measure
from _torch_ddp_worker import CHECKPOINT_EVERY, ROWS, made
from lightning.pytorch.strategies import DDPStrategy

import ftcomm.torch as ft
from ftcomm.torch.lightning import FtcommStrategy


class Module(lightning.LightningModule):
    """The model; it tells when a batch begins."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._begin = training.begin
        self.model = made(training.width)

    def on_train_batch_start(self, *_: Any) -> None:
        """Wait for the turn, behind the hooks of all callbacks."""
        self._begin()

    def training_step(self, x: Any, _: int) -> Any:
        """The loss."""
        return self.model(x).square().mean()

    def configure_optimizers(self) -> Any:
        """As in the other frameworks."""
        return torch.optim.SGD(self.parameters(), lr=0.001)


def fit(training: Training, loader: Any, **options: Any) -> torch.nn.Module:
    """Train, and do nothing else."""
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=training.steps, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
    module = Module(training)
    trainer.fit(module, loader)
    return module


def by_gloo(training: Training) -> torch.nn.Module:
    """Lightning's own strategy."""
    loader = torch.utils.data.DataLoader(Rows(training), batch_size=ROWS, shuffle=True)
    strategy = DDPStrategy(process_group_backend="gloo")
    return fit(training, loader, strategy=strategy, devices=training.comm.world_size)


def by_ftcomm(training: Training) -> torch.nn.Module:
    """The strategy of ftcomm."""
    loader = ft.DataLoader(Rows(training), training.comm, batch_size=ROWS)
    return fit(training, loader, strategy=FtcommStrategy(training.comm, every=CHECKPOINT_EVERY))


if __name__ == "__main__":
    measure({GLOO: by_gloo, OURS: by_ftcomm})
