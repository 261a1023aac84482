"""One rank of `torch_frameworks.py` that trains by the Trainer of Hugging Face."""

from typing import Any

import torch
import transformers
from _accelerate_states import own_states
from _framework_sides import GLOO, OURS, Rows, Training, measure
from _torch_ddp_worker import CHECKPOINT_EVERY, ROWS, made

from ftcomm.torch.trainer import Trainer

GLOO_USED = "gloo, ddp_find_unused_parameters=False"


class Model(torch.nn.Module):
    """The model as the Trainer calls one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.model = made(width)

    def forward(self, x: Any) -> dict[str, Any]:
        """The loss."""
        return {"loss": self.model(x).square().mean()}


class Begin(transformers.TrainerCallback):
    """Waits for the turn."""

    def __init__(self, training: Training) -> None:
        self._begin = training.begin

    def on_step_begin(self, *_: Any, **_options: Any) -> None:
        """As the batch has been read."""
        self._begin()


def train(kind: Any, training: Training, **options: Any) -> torch.nn.Module:
    """Train, and do nothing else."""
    arguments = transformers.TrainingArguments(
        str(training.folder), max_steps=training.steps, per_device_train_batch_size=ROWS,
        optim="sgd", learning_rate=0.001, use_cpu=True, dataloader_pin_memory=False,
        report_to="none", logging_strategy="no", disable_tqdm=True, **options,
    )  # fmt: skip
    rows = Rows(training, lambda x: {"x": x})
    model = Model(training.width)
    trainer = kind(model, arguments, train_dataset=rows, callbacks=[Begin(training)])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return model


def by_gloo(training: Training, **options: Any) -> torch.nn.Module:
    """The Trainer of transformers, which by default has DDP find unused parameters."""
    return train(transformers.Trainer, training, ddp_backend="gloo", save_strategy="no", **options)


def by_gloo_used(training: Training) -> torch.nn.Module:
    """The same without looking for them."""
    return by_gloo(training, ddp_find_unused_parameters=False)


def by_ftcomm(training: Training) -> torch.nn.Module:
    """The Trainer of ftcomm."""
    saves = {"save_steps": CHECKPOINT_EVERY, "save_total_limit": 1}
    return train(Trainer, training, save_strategy="steps", **saves)


if __name__ == "__main__":
    measure({GLOO: by_gloo, GLOO_USED: by_gloo_used, OURS: by_ftcomm}, own_states)
