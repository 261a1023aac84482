"""The Trainer of Hugging Face on one rank: what it refuses, and what a restarted rank draws."""

import copy
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import ftcomm  # noqa: E402 - skipped before, where torch is missing
import ftcomm.torch as ft  # noqa: E402 - likewise
from ftcomm.torch import trainer as module  # noqa: E402 - likewise
from ftcomm.torch.trainer import Trainer  # noqa: E402 - likewise

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", ["save_only_model", "ignore_data_skip", "auto_find_batch_size"])
def test_arguments_that_keep_a_rank_from_going_on_are_refused(name: str, tmp_path: Path) -> None:
    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", **{name: True}
    )
    with (
        ft.init("none") as comm,
        pytest.raises(ftcomm.ConfigError, match=rf"{name}=True: .*leave {name} False"),
    ):
        Trainer(torch.nn.Linear(2, 1), arguments, comm=comm)


@pytest.mark.parametrize(
    ("options", "sampler"),
    [
        ({"train_sampling_strategy": "group_by_length"}, "LengthGroupedSampler"),
        ({"accelerator_config": {"use_seedable_sampler": False}}, "RandomSampler"),
        ({}, None),
    ],
)
def test_an_order_that_nobody_can_make_again_is_refused(
    options: dict[str, Any], sampler: str | None, tmp_path: Path
) -> None:
    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, **options
    )
    rows = [{"input_ids": [1], "x": row} for row in range(4)]
    with ft.init("none") as comm:
        trainer = Trainer(torch.nn.Linear(2, 1), arguments, comm=comm, train_dataset=rows)
        if sampler is None:
            assert len(trainer.get_train_dataloader()) == 1
            return
        with pytest.raises(ftcomm.ConfigError, match=f"the rows come from a {sampler}, whose"):
            trainer.get_train_dataloader()


def test_the_model_of_a_function_is_made_once(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: Any) -> Any:
            hooked.append(all(p._post_accumulate_grad_hooks for p in self.parameters()))
            return {"loss": self.layer(x.float()[:, None]).square().mean()}

    hooked: list[bool] = []

    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, max_steps=2
    )
    rows = [{"x": row} for row in range(4)]
    with ft.init("none") as comm:
        trainer = Trainer(model_init=Model, args=arguments, comm=comm, train_dataset=rows)
        model = trainer.model
        trainer.train()
        assert trainer.model is model
    assert hooked == [True, True]


def test_behind_the_training_the_model_is_a_plain_one(tmp_path: Path) -> None:
    """Backward passes of one rank alone would end the job."""
    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, max_steps=1
    )
    losses: list[Any] = []

    def compute_loss(model: Any, inputs: Any, **_: Any) -> Any:
        losses.append(model(**inputs)["loss"])  # and with it a graph
        return losses[-1]

    with ftcomm.init("none") as comm:
        trainer = Trainer(
            Dropping(), arguments, comm=comm, train_dataset=[{"x": [1.0, 2.0, 3.0, 4.0]}] * 2
        )
        trainer.compute_loss = compute_loss
        trainer.train()
        assert trainer.compute_loss is compute_loss
        before = comm.seqno
        trainer.model(torch.ones(1, 4))["loss"].backward()
        assert comm.seqno == before


def test_a_collator_with_a_seed_of_its_own_is_refused() -> None:
    tokenizer = SimpleNamespace(mask_token="[MASK]")
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, seed=1)
    with pytest.raises(ftcomm.ConfigError, match=r"the DataCollatorForLanguageModeling has a seed"):
        module.check_collator(collator)
    module.check_collator(transformers.DataCollatorForLanguageModeling(tokenizer))


class Dropping(torch.nn.Module):
    """A model that draws in each step, from the generator that its collator draws from."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        scores = self.layer(torch.nn.functional.dropout(x, 0.5, training=self.training))
        return {"loss": scores.square().mean()}


def noisy(rows: list[Any]) -> dict[str, Any]:
    """A batch with noise of all generators, as of a collator that masks words."""
    scale = random.random() + np.random.random()  # noqa: NPY002 - scripts do
    return {"x": torch.tensor([row["x"] for row in rows]) + scale * torch.rand(len(rows), 4)}


def fitted(folder: Path, **options: Any) -> list[float]:
    """The weights after two epochs of four batches and a half."""
    arguments = transformers.TrainingArguments(
        str(folder), use_cpu=True, report_to="none", disable_tqdm=True, save_steps=1,
        per_device_train_batch_size=2, max_steps=6, **options,
    )  # fmt: skip
    rows = [{"x": [row, 0.0, 1.0, row / 2]} for row in range(9)]
    with ftcomm.init("none") as comm:
        torch.manual_seed(5)
        trainer = Trainer(
            Dropping(), arguments, comm=comm, train_dataset=rows, data_collator=noisy
        )  # fmt: skip
        trainer.train()
    return [value for p in trainer.model.parameters() for value in p.flatten().tolist()]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_accumulation_steps": 2},
        pytest.param({"dataloader_num_workers": 2}, marks=pytest.mark.process),
    ],
)
def test_a_restarted_rank_draws_the_random_numbers_behind_its_checkpoint(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of an epoch, before its last batch, at its end, and in the next one."""
    kept: list[dict[str, Any]] = []

    def save(_: Any, *, local: Any, model: Any, **__: Any) -> None:
        kept.append(copy.deepcopy({**local, "model": model.state_dict()}))

    def load(_: Any, *, model: Any, **__: Any) -> ft.RestoredParts:
        model.load_state_dict(kept[step]["model"])
        return ft.RestoredParts(step + 1, kept[step])

    with monkeypatch.context() as patch:
        patch.setattr(module, "save", save)
        undisturbed = fitted(tmp_path / "whole", **options)
    monkeypatch.setattr(module, "load", load)
    monkeypatch.setattr(module, "save", lambda *_, **__: None)
    for step in range(1, len(kept)):
        assert fitted(tmp_path / str(step), **options) == undisturbed, f"from step {step + 1}"


class Nested(torch.nn.Module):
    """Layers that reentrant checkpoints compute again, each in a backward pass of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Any) -> Any:
        x = x.requires_grad_()
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=True)
        return {"loss": x.square().mean()}


def test_gradients_are_averaged_once_for_all_reentrant_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the first gradient comes in a pass that one of them makes."""
    from ftcomm.torch.gradient_bucket import GradientBucket  # noqa: PLC0415 - torch is there

    finished: list[int] = []
    finish = GradientBucket.finish
    monkeypatch.setattr(
        GradientBucket, "finish", lambda bucket: (finished.append(1), finish(bucket))
    )
    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, max_steps=2
    )
    rows = [{"x": [1.0, 2.0, 3.0, 4.0]}] * 4
    with ftcomm.init("none") as comm:
        Trainer(Nested(), arguments, comm=comm, train_dataset=rows).train()
    assert len(finished) == 2
