"""The Trainer of Hugging Face on one rank: what it refuses."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import ftcomm  # noqa: E402 - skipped before, where torch is missing
import ftcomm.torch as ft  # noqa: E402 - likewise
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
            return {"loss": self.layer(x.float()[:, None]).square().mean()}

    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, max_steps=2
    )
    rows = [{"x": row} for row in range(4)]
    with ft.init("none") as comm:
        trainer = Trainer(model_init=Model, args=arguments, comm=comm, train_dataset=rows)
        model = trainer.model
        trainer.train()
        assert trainer.model is model
        assert all(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
