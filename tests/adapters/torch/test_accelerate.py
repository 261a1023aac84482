"""The Accelerator on one rank: what it refuses and answers; and where a killed rank goes on."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate", reason="the package accelerate is not installed")

import ftcomm  # noqa: E402 - skipped before, where it is missing
import ftcomm.torch as ft  # noqa: E402 - likewise
from ftcomm.torch.accelerate import Accelerator, script_run  # noqa: E402 - likewise
from ftcomm.torch.accelerate.refusals import check_inner  # noqa: E402 - likewise
from ftcomm.torch.accelerate.script_run import AcceleratedRun, rank_loader  # noqa: E402 - likewise
from tests.adapters.jobs import (  # noqa: E402 - likewise
    WORKERS,
    model_in,
    run,
    runs_without_kills,
    victims_in,
)

SCRIPT = Path(__file__).parent / "scripts" / "train_accelerate.py"
ROWS = torch.arange(20.0).reshape(10, 2)
BEHIND_LOADING = "the loader has a sampler of its own, {}, or data without a length"


@pytest.fixture(autouse=True)
def comm() -> Iterator[ftcomm.Communicator]:
    with ft.init("none") as communicator:
        yield communicator
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


class Script:
    """All that a training prepares."""

    def __init__(self, every: int = 50, **options: Any) -> None:
        torch.manual_seed(0)
        self.accelerator = Accelerator(every=every, **options)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        loaders = [torch.utils.data.DataLoader(ROWS, batch_size=4) for _ in range(2)]
        self.model, self.optimizer, self.loader, self.validation, self.scheduler = (
            self.accelerator.prepare(model, optimizer, *loaders, scheduler)
        )

    def step(self, x: Any) -> None:
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(self.model(x).square().mean())
            self.optimizer.step()
            self.optimizer.zero_grad()

    def train(self) -> None:
        for x in self.loader:
            self.step(x)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"mixed_precision": "fp16"},
            "mixed precision fp16 needs a GPU.* - use mixed_precision='b",
        ),
        ({"mixed_precision": "fp8"}, "mixed precision fp8 needs a GPU"),
        ({"deepspeed_plugin": 1}, "the Accelerator's deepspeed_plugin is not supported - leave it"),
        ({"fsdp_plugin": 1}, "fsdp_plugin is not supported - use fully_shard with ftcomm.torch.s"),
        ({"split_batches": True}, "split_batches is not supported - leave it out, and set the l"),
        ({"dynamo_backend": "inductor"}, "dynamo_backend is not supported - compile the model be"),
    ],
    ids=["fp16", "fp8", "DeepSpeed", "FSDP", "split", "dynamo"],
)
def test_an_option_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ftcomm.ConfigError, match=sentence):
        Accelerator(**options)


@pytest.mark.parametrize("name", ["save_state", "load_state", "skip_first_batches"])
def test_checkpoints_of_accelerate_are_refused(name: str) -> None:
    accelerator = Accelerator()
    with pytest.raises(
        ftcomm.ConfigError, match=f"Accelerator.{name} is not supp.* - leave it out"
    ):
        getattr(accelerator, name)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        accelerator.no_such_name  # noqa: B018 - it raises


def test_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ftcomm.ConfigError, match=r"there is a GPU.* - pass cpu=True to train on"):
        Accelerator()
    assert Accelerator(cpu=True).device.type == "cpu"


def test_a_group_of_accelerates_own_is_refused() -> None:
    class Inner:
        distributed_type = "MULTI_CPU"

    with pytest.raises(
        ftcomm.ConfigError, match="a group of its own, MULTI_CPU - start the script"
    ):
        check_inner(Inner())


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]  # torch may have no types
    """Rows without a number."""

    def __iter__(self) -> Iterator[Any]:
        yield from ROWS


@pytest.mark.parametrize(
    ("loader", "kind"),
    [
        (lambda: torch.utils.data.DataLoader(Stream(), batch_size=2), "_InfiniteConstantSampler"),
        (lambda: torch.utils.data.DataLoader(ROWS, batch_sampler=[[0], [1]]), "list"),
        (lambda: torch.utils.data.DataLoader(ROWS, sampler=[1, 0]), "list"),
        (
            lambda: torch.utils.data.DataLoader(
                ROWS, sampler=torch.utils.data.RandomSampler(ROWS, replacement=True)
            ),
            "RandomSampler",
        ),
    ],
    ids=["stream", "batch sampler", "sampler", "replacement"],
)
def test_an_order_of_rows_of_another_is_refused(loader: Callable[[], Any], kind: str) -> None:
    with pytest.raises(ftcomm.ConfigError, match=BEHIND_LOADING.format(kind)):
        Accelerator().prepare(loader())


def test_a_second_model_is_refused() -> None:
    accelerator = Accelerator()
    with pytest.raises(ftcomm.ConfigError, match=r"a second model .* - put both in one module"):
        accelerator.prepare(torch.nn.Linear(2, 1), torch.nn.Linear(2, 1))


def test_a_wrapper_that_the_script_has_made_is_refused() -> None:
    """Its module would be in no checkpoint, and ranks would differ after a restart."""
    accelerator, model = Accelerator(), torch.nn.Linear(2, 1)
    with pytest.raises(ftcomm.ConfigError, match=r"a DDP .* - pass the module; prepare\(\) wraps"):
        accelerator.prepare(ft.DDP(model))


def test_what_was_prepared_is_left_as_it_is() -> None:
    script = Script()
    parts = dict(script.accelerator._run._parts)
    again = (script.model, script.loader, script.validation)
    assert script.accelerator.prepare(*again) == again
    assert script.accelerator._run._parts == parts


def test_backward_without_a_model_is_refused() -> None:
    """The script has wrapped it by itself, and prepares the rest."""
    accelerator, model = Accelerator(), ft.DDP(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = torch.utils.data.DataLoader(ROWS, batch_size=4)
    _, loader = accelerator.prepare(optimizer, loader)
    for x in loader:
        with pytest.raises(ftcomm.ConfigError, match=r"no model that .* - pass the module to prep"):
            accelerator.backward(model(x).square().mean())


def test_a_model_that_is_not_trained_is_left_as_it_is() -> None:
    model = torch.nn.Linear(2, 1).requires_grad_(requires_grad=False)
    assert Accelerator().prepare(model) is model


def test_what_is_added_later_is_refused() -> None:
    script = Script()
    script.train()
    with pytest.raises(
        ftcomm.ConfigError, match="the object was added when the training had begun"
    ):
        script.accelerator.register_for_checkpointing(script.scheduler)


def test_backward_without_a_loop_over_the_data_is_refused() -> None:
    script = Script()
    for x in script.validation:
        with pytest.raises(ftcomm.ConfigError, match=r"outside of a loop .* as the first loader"):
            script.step(x)


def test_a_training_without_a_loader_is_refused() -> None:
    with pytest.raises(ftcomm.ConfigError, match="no loader was prepared"):
        next(Accelerator().epochs(1))


def test_a_second_load_is_refused(comm: ftcomm.Communicator) -> None:
    script = Script()
    ft.load(comm, step=0)
    with pytest.raises(ftcomm.ConfigError, match="the job's state was loaded before this training"):
        script.train()


def test_gathering_between_passes_is_refused_before_the_next() -> None:
    script = Script()
    script.train()
    script.accelerator.gather(ROWS)
    with pytest.raises(
        ftcomm.ConfigError, match=r"between two passes .* - loop over accelerator.e"
    ):
        script.train()


def test_gathering_before_the_data_of_an_epoch_is_refused() -> None:
    accelerator = Script().accelerator
    next(accelerator.epochs(1))
    with pytest.raises(ftcomm.ConfigError, match="at the beginning of an epoch, before its tr"):
        accelerator.gather(ROWS)


def test_two_passes_in_one_epoch_are_refused() -> None:
    script = Script()
    next(script.accelerator.epochs(1))
    script.train()
    with pytest.raises(ftcomm.ConfigError, match="passes over the training data twice in one ep"):
        script.train()


def test_epochs_within_a_training_are_refused() -> None:
    script = Script()
    script.train()
    with pytest.raises(
        ftcomm.ConfigError, match=r"epochs\(\) was called when the training had beg"
    ):
        next(script.accelerator.epochs(1))


@pytest.mark.parametrize("uses_epochs", [False, True])
def test_checkpoints_are_kept_in_and_between_epochs(
    uses_epochs: bool, comm: ftcomm.Communicator
) -> None:
    """Of three steps of an epoch, the second has a checkpoint, and so has the third."""
    script = Script(every=2)
    for _ in script.accelerator.epochs(2) if uses_epochs else range(2):
        script.train()
        if uses_epochs:
            script.accelerator.gather(ROWS)
    assert (comm.version, script.accelerator.completed_steps) == (4, 6)


def test_a_pass_that_the_script_leaves_is_not_continued(comm: ftcomm.Communicator) -> None:
    script = Script(every=1)
    for _ in script.accelerator.epochs(2):
        for x in script.loader:
            script.step(x)
            break
        assert [len(x) for x in script.validation] == [4, 4, 4]
    assert (script.loader.epoch, script.loader.position, comm.version) == (2, 0, 2)


def test_a_loader_that_resumes_behind_its_last_batch_gives_an_empty_pass(
    comm: ftcomm.Communicator,
) -> None:
    script = Script(every=1)
    script.loader.load_state_dict({"epoch": 3, "position": len(script.loader)})
    run: Any = script.loader._run
    run.begin_pass = lambda loader: not run._active.append(loader)
    assert [len([*script.loader]) for _ in range(2)] == [0, len(script.loader)]
    assert (script.loader.epoch, script.loader.position) == (5, 0)


def test_the_steps_are_those_of_accelerate_alone() -> None:
    weights = []
    for kind in (Accelerator, accelerate.Accelerator):
        torch.manual_seed(0)
        accelerator = kind(gradient_accumulation_steps=2)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        loader = torch.utils.data.DataLoader(ROWS[:8], batch_size=2)
        model, optimizer, loader, scheduler = accelerator.prepare(
            model, optimizer, loader, scheduler
        )
        for _ in range(2):
            for x in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(x).square().mean())
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
        weights.append((accelerator.unwrap_model(model).weight.tolist(), scheduler.get_last_lr()))
    assert weights[0] == weights[1]


def test_a_run_that_skips_neither_waits_nor_gathers_nor_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accelerator = Accelerator()
    monkeypatch.setattr(accelerator._run, "is_skipping", True)
    monkeypatch.setattr(accelerator, "_comm", None)
    accelerator.wait_for_everyone()
    monkeypatch.undo()
    monkeypatch.setattr(accelerator._run, "is_skipping", True)
    accelerator.print("text")
    accelerator.save({}, tmp_path / "file")
    with pytest.raises(ftcomm.ConfigError, match="gathers at the begin"):
        accelerator.gather(ROWS)
    assert (capsys.readouterr().out, list(tmp_path.iterdir())) == ("", [])


def test_what_one_rank_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accelerator = Accelerator()
    numbers = accelerator.num_processes, accelerator.process_index, accelerator.local_process_index
    assert numbers == (1, 0, 0)
    assert accelerator.is_main_process
    assert accelerator.is_local_main_process
    assert accelerator.is_last_process
    assert not accelerator.use_distributed
    assert accelerator.gather({"a": torch.tensor(2.0)})["a"].tolist() == [2]
    assert accelerator.gather_for_metrics(["a", "b"]) == ["a", "b"]
    assert accelerator.reduce(torch.tensor([1.0, 2.0]), "mean", scale=2.0).tolist() == [2, 4]
    assert accelerator.reduce(ROWS, "none") is ROWS
    assert accelerator.pad_across_processes(ROWS, dim=1).tolist() == ROWS.tolist()
    assert not accelerator.check_trigger()
    accelerator.set_trigger()
    assert (accelerator.check_trigger(), accelerator.check_trigger()) == (True, False)
    with accelerator.main_process_first():
        accelerator.print("once")
    assert capsys.readouterr().out == "once\n"
    assert accelerator.on_main_process(len)("ab") == 2
    accelerator.save({"a": 1}, tmp_path / "file")
    assert torch.load(tmp_path / "file") == {"a": 1}
    script = Script()
    assert script.accelerator.get_state_dict(script.model).keys() == {"weight", "bias"}


def test_a_sum_of_integers_is_exact() -> None:
    total = Accelerator().reduce({"rows": torch.tensor([2**53 + 1, 3])})["rows"]
    assert (total.dtype, total.tolist()) == (torch.int64, [2**53 + 1, 3])
    assert Accelerator().reduce(torch.tensor(4), scale=0.5).item() == 2.0


@pytest.mark.parametrize("dim", [-3, -2, -1, 0, 1, 2])
@pytest.mark.parametrize("pad_first", [False, True])
def test_a_dimension_is_padded_as_accelerate_does(
    dim: int, pad_first: bool, comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a rank whose tensor is of 12 rows and columns."""
    monkeypatch.setattr(accelerate.utils.operations, "gather", lambda _: torch.tensor([[12, 12]]))
    monkeypatch.setattr(type(comm), "allreduce", lambda *_: 12)
    accelerator, pad = Accelerator(), accelerate.utils.operations.pad_across_processes
    expected = getattr(pad, "__wrapped__", pad)(ROWS, dim, -1, pad_first)
    padded = accelerator.pad_across_processes(ROWS, dim, -1, pad_first)
    assert padded.tolist() == expected.tolist()
    assert padded.shape == {-2: (12, 2), -1: (10, 12), 0: (12, 2), 1: (10, 12)}.get(dim, (10, 2))


def test_bfloat16_is_computed_with() -> None:
    model = Accelerator(mixed_precision="bf16").prepare(torch.nn.Linear(2, 1))
    exact = model.module.weight @ ROWS[1] + model.module.bias
    assert model(ROWS[1]).item() != exact.item()
    assert model(ROWS[1]).item() == pytest.approx(exact.item(), rel=0.02)


def test_rows_that_only_fill_batches_are_not_gathered() -> None:
    class Place:
        rank, world_size, version = 1, 2, -1

    place: Any = Place()
    run_of = AcceleratedRun(place, 1)
    loader = torch.utils.data.DataLoader(torch.arange(5), batch_size=2)
    training, other = (rank_loader(loader, place, run_of) for _ in range(2))
    run_of.add("loader", training)
    seen = [(rows.tolist(), run_of.rows_of_last_batch) for rows in other]
    assert seen == [([2, 3], None), ([1, 2], 1)]


# --- kills ------------------------------------------------------------------------------------

Outcome = tuple[str, set[str]]


def outcome(said: str) -> Outcome:
    """The one model, and the numbers that all ranks told."""
    told = re.findall(r"^\[\d\] last (.*)$", said, re.MULTILINE)
    assert len(told) == WORKERS, said
    return model_in(said), set(told)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    return runs_without_kills(tmp_path_factory)


def check(undisturbed: Callable[..., str], folder: Path, kill: str, *options: str) -> None:
    said = run(SCRIPT, folder / "job", *options, kills=[kill])
    assert victims_in(said) == [kill[0]]
    assert outcome(said) == outcome(undisturbed(SCRIPT, *options))


@pytest.mark.process
@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", ["2.backward", "5.optimizer"])
def test_a_kill_within_an_epoch_changes_nothing(
    moment: str, undisturbed: Callable[..., str], tmp_path: Path
) -> None:
    check(undisturbed, tmp_path, f"1.{moment}", "--evaluate")


@pytest.mark.process
@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_gradients_of_a_slower_optimizer_are_kept(
    undisturbed: Callable[..., str], tmp_path: Path
) -> None:
    """They add up over an epoch, at whose begin the script makes them none."""
    said = run(SCRIPT, tmp_path / "job", "--slow", kills=["1.3.backward", "0.5.optimizer"])
    assert victims_in(said) == ["0", "1"], said[-3000:]
    assert model_in(said) == model_in(undisturbed(SCRIPT, "--slow"))


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", ["2.backward", "4.backward", "5.optimizer"])
@pytest.mark.parametrize("rank", "01")
@pytest.mark.parametrize(
    "options",
    [("--accumulate=2",), ("--per-epoch",), ("--per-epoch", "--evaluate")],
    ids=["accumulate", "schedule", "evaluate"],
)
def test_a_kill_changes_nothing_in_other_trainings(
    options: tuple[str, ...],
    rank: str,
    moment: str,
    undisturbed: Callable[..., str],
    tmp_path: Path,
) -> None:
    check(undisturbed, tmp_path, f"{rank}.{moment}", *options)


def test_a_model_that_is_not_trained_is_kept_too(comm: ftcomm.Communicator) -> None:
    script = Script(every=1)
    average = torch.nn.Linear(2, 1).requires_grad_(requires_grad=False)
    assert script.accelerator.prepare(average) is average
    assert average in script.accelerator._run._parts.values()
    script.train()
    assert comm.version == 3


def test_what_a_rank_has_not_told_or_stepped_yet_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, Any] = {}
    found = [ft.RestoredParts(0, {"epoch": 0, "steps": 0})]
    monkeypatch.setattr(script_run, "save", lambda _, *, local, **__: kept.update(local))
    monkeypatch.setattr(script_run, "load", lambda *_, **__: found[-1])
    first, other = (Script(every=1, gradient_accumulation_steps=3) for _ in range(2))
    for x in first.loader:
        first.accelerator.set_trigger()
        for _ in range(2):
            first.step(x)
    assert (kept["passes"], kept["trigger"]) == (0, True)
    found.append(ft.RestoredParts(1, {"epoch": 0, "steps": 2, **kept, "passes": 1}))
    for x in other.loader:
        other.step(x)
        break
    assert other.accelerator._run.passes_without_step == 2
    assert [other.accelerator.check_trigger() for _ in range(2)] == [True, False]


def test_an_optimizer_that_looks_at_a_ranks_own_loss_is_refused() -> None:
    optimizer = torch.optim.LBFGS(torch.nn.Linear(2, 1).parameters())
    with pytest.raises(ftcomm.ConfigError, match=r"LBFGS searches by each .* - use an optimizer"):
        Accelerator().prepare(optimizer)


def test_a_part_that_prepare_does_not_know_is_refused() -> None:
    class Schedule:
        def state_dict(self) -> dict[str, Any]:
            return {}

    message = r"not know the class Schedule, nor .* pass it to register_for_checkpointing\(\)"
    with pytest.raises(ftcomm.ConfigError, match=message):
        Script().accelerator.prepare(Schedule())
