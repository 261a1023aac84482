"""The Trainer of Hugging Face on one rank: what it refuses."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import ftcomm  # noqa: E402 - skipped before, where torch is missing
import ftcomm.torch as ft  # noqa: E402 - likewise
from ftcomm.torch.trainer import Trainer  # noqa: E402 - likewise

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", ["save_only_model", "ignore_data_skip"])
def test_arguments_that_keep_a_rank_from_going_on_are_refused(name: str, tmp_path: Path) -> None:
    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", **{name: True}
    )
    with (
        ft.init("none") as comm,
        pytest.raises(ftcomm.ConfigError, match=rf"{name}=True: .*leave {name} False"),
    ):
        Trainer(torch.nn.Linear(2, 1), arguments, comm=comm)
