"""A small training by the Trainer of Hugging Face; it kills itself where it is told to."""

import argparse
import os
import random
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from train import ROWS, STEPS, Kills, data, made, told
from transformers import (
    EarlyStoppingCallback,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

import ftcomm.torch as ft
from ftcomm.torch.broadcasting import broadcast_buffers
from ftcomm.torch.trainer import Trainer


class Model(torch.nn.Module):
    """The network of `train`, as the Trainer calls one."""

    def __init__(self, kills: Kills) -> None:
        super().__init__()
        self.network = made(kills, torch.float32)

    def forward(self, x: Any, labels: Any) -> Any:
        scores = self.network(x)
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "logits": scores}


class Moments(TrainerCallback):
    """Tells `Kills` where the training is."""

    def __init__(self, kills: Kills) -> None:
        self._kills = kills

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        self._kills.step = state.global_step

    def on_pre_optimizer_step(self, *_: Any, **_options: Any) -> None:
        self._kills.at("optimizer")


def noisy(rows: list[Any]) -> dict[str, Any]:
    """A batch with noise of all generators, as of a collator that masks words."""
    batch = default_data_collator(rows)
    scale = random.random() + np.random.random()  # noqa: NPY002 - as scripts do
    return {**batch, "x": batch["x"] + scale * torch.rand(batch["x"].shape)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill", action="append", default=[], metavar="RANK.STEP.MOMENT")
    parser.add_argument("--stop", action="store_true", help="by a callback, behind four steps")
    parser.add_argument("--noise", action="store_true", help="is drawn as rows are read")
    parser.add_argument("--loader-workers", type=int, default=0)
    options = parser.parse_args()
    evaluates: dict[str, Any] = {
        "eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True,
    }  # fmt: skip
    torch.set_num_threads(1)
    with ft.init() as comm:
        kills = Kills(options.kill, comm.rank)
        x, y = data(torch.float32).tensors
        arguments = TrainingArguments(
            "output", max_steps=STEPS, save_steps=2, per_device_train_batch_size=8, use_cpu=True,
            learning_rate=0.01, report_to="none", disable_tqdm=True, logging_steps=1,
            metric_for_best_model="loss", dataloader_num_workers=options.loader_workers,
            **(evaluates if options.stop else {}),
        )  # fmt: skip
        callbacks: list[TrainerCallback] = [Moments(kills)]
        if options.stop:  # three losses after the first are no better by a thousand
            callbacks.append(EarlyStoppingCallback(3, 1000.0))
        rows = [{"x": x[row], "labels": y[row]} for row in range(ROWS)]
        trainer = Trainer(
            Model(kills), arguments, callbacks=callbacks, train_dataset=rows,
            eval_dataset=rows[:8], data_collator=noisy if options.noise else None,
        )  # fmt: skip
        trainer.train()
        losses = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
        print("losses", len(losses), *losses)
        broadcast_buffers(comm, trainer.model)
        model = told(trainer.model)
    print("model", model)


if __name__ == "__main__":
    main()
