"""`save` and `load`: what is restored, and what is refused."""

import collections
import importlib
import itertools
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ftcomm  # noqa: E402 - skipped before, where torch is missing
import ftcomm.torch as ft  # noqa: E402 - likewise
from ftcomm.state.leaf_digests import leaves_of  # noqa: E402 - likewise
from ftcomm.state.serializer import pack_state  # noqa: E402 - likewise
from ftcomm.torch.contents import to_content, to_tree  # noqa: E402 - likewise
from ftcomm.torch.gradients import (  # noqa: E402 - likewise
    ZEROS,
    gradients_of,
    restore_gradients,
    trained_in,
)
from ftcomm.torch.parts import restore, state_of  # noqa: E402 - likewise


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


class Script:
    """A model with all that its training needs."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4])

    def parts(self) -> dict[str, Any]:
        return {
            "model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler,
        }  # fmt: skip

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 4)).square().mean().backward()
        self.optimizer.step()
        self.scheduler.step()

    def weights(self) -> list[float]:
        return [value for p in self.model.parameters() for value in p.flatten().tolist()]


def carried(comm: ftcomm.Communicator, content: Any) -> Any:
    """`content` as another process would get it."""
    return comm.broadcast_object(content)


def test_training_goes_on_from_a_state_as_if_it_had_not_stopped(comm: ftcomm.Communicator) -> None:
    first, other = Script(1), Script(2)
    for _ in range(3):
        first.step()
    content = to_content({n: state_of(p) for n, p in first.parts().items()}, [])
    tree = to_tree(carried(comm, content), [])
    for name, part in other.parts().items():
        restore(part, tree[name])
    for script in (first, other):
        torch.manual_seed(3)
        for _ in range(3):
            script.step()
    assert first.weights() == other.weights()
    assert type(other.scheduler.milestones) is type(first.scheduler.milestones)


def test_a_fresh_start_returns_the_values_and_keeps_the_generators(
    comm: ftcomm.Communicator,
) -> None:
    script = Script(1)
    torch.manual_seed(7)
    restored = ft.load(comm, **script.parts(), step=0)
    assert restored == ft.RestoredParts(version=0, values={"step": 0})
    torch_draw = torch.rand(3).tolist()
    torch.manual_seed(7)
    assert torch_draw == torch.rand(3).tolist()
    assert ft.save(comm, **script.parts(), step=1) == 1


def test_parts_of_a_rank_alone_come_back_as_they_were(comm: ftcomm.Communicator) -> None:
    """Gradients of Lightning's manual optimization are such: in another order they were lost."""
    script = Script(1)
    image = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    local = {"image": {"at": [image]}, "scheduler": script.scheduler}
    (found,) = ft.load(comm, local=local, model=script.model).values["image"]["at"]
    assert (found.tolist(), found.stride()) == (image.tolist(), image.stride())
    assert type(script.scheduler.milestones) is collections.Counter


def test_a_checkpoint_without_anything_of_the_ranks_own(comm: ftcomm.Communicator) -> None:
    script = Script(1)
    ft.load(comm, rng=False, model=script.model)
    assert ft.save(comm, rng=False, model=script.model) == 1


@pytest.mark.parametrize(
    ("part", "draw"),
    [
        (torch.Generator().manual_seed(3), lambda g: torch.rand(4, generator=g).tolist()),
        (np.random.default_rng(3), lambda g: g.standard_normal(4).tolist()),
        (random.Random(3), lambda g: [g.random() for _ in range(4)]),
    ],
    ids=["torch", "numpy", "python"],
)
def test_a_generator_goes_on_where_it_was(comm: ftcomm.Communicator, part: Any, draw: Any) -> None:
    draw(part)
    state = carried(comm, to_content(state_of(part), []))
    expected = draw(part)
    restore(part, to_tree(state, []))
    assert draw(part) == expected


@pytest.mark.parametrize("seed", [3, 4], ids=["alike", "another"])
def test_a_generator_gives_the_children_that_it_has_not_given(
    comm: ftcomm.Communicator, seed: int
) -> None:
    if np.__version__.startswith("1."):
        pytest.skip("numpy is too old for that")
    first, other = np.random.default_rng(3), np.random.default_rng(seed)
    first.spawn(2)
    restored(comm, first, other)
    assert [*map(draws_of, first.spawn(2))] == [*map(draws_of, other.spawn(2))]


def draws_of(generator: np.random.Generator) -> list[float]:
    return list(generator.standard_normal(3))


def test_the_generators_of_the_process_go_on_where_they_were(comm: ftcomm.Communicator) -> None:
    from ftcomm.torch.parts import random_states, restore_random_states  # noqa: PLC0415 - as above

    def draws() -> list[float]:
        return [torch.rand(()).item(), np.random.rand(), random.random()]  # noqa: NPY002 - scripts do

    states = carried(comm, random_states())
    expected = draws()
    restore_random_states(states)
    assert draws() == expected


def test_a_part_that_the_checkpoint_lacks_is_named(comm: ftcomm.Communicator) -> None:
    from ftcomm.torch.checkpoints import _check_names  # noqa: PLC0415 - torch is there

    with pytest.raises(ftcomm.ConfigError, match=r"has the parts a, and load\(\) asks for a, b"):
        _check_names({"a": 1}, {"a": 1, "b": 2})


def test_a_sampler_goes_on_behind_the_batch_that_the_script_was_given(
    comm: ftcomm.Communicator,
) -> None:
    def sampler() -> ft.BatchSampler:
        return ft.BatchSampler(23, comm, batch_size=4, seed=3)

    whole = sampler()
    epochs = [list(whole.over(iter(whole))) for _ in range(2)]
    assert [len(epoch) for epoch in epochs] == [5, 5]
    assert epochs[0] != epochs[1]
    first = sampler()
    batches = first.over(list(first))  # reads ahead, as a DataLoader does
    assert [next(batches) for _ in range(2)] == epochs[0][:2]
    other = sampler()
    other.load_state_dict(first.state_dict())
    assert list(other.over(iter(other))) == epochs[0][2:]
    assert (other.epoch, other.position) == (1, 0)


def loaders(comm: ftcomm.Communicator) -> list[ft.DataLoader]:
    return [ft.DataLoader(torch.arange(8), comm, batch_size=2) for _ in range(2)]


def test_a_loop_over_a_zip_takes_whole_epochs(comm: ftcomm.Communicator) -> None:
    """The second loader is never asked for a batch behind its last."""
    first, second = loaders(comm)
    for epoch in range(1, 4):
        assert len([*zip(first, second, strict=False)]) == 4
        assert first.state_dict() == second.state_dict() == {"epoch": epoch, "position": 0}


def test_a_loop_that_is_left_in_its_last_body_ends_the_epoch(comm: ftcomm.Communicator) -> None:
    loader, _ = loaders(comm)
    for epoch in range(3):
        for number, _batch in enumerate(loader, 1):
            if number == len(loader):
                assert loader.state_dict() == {"epoch": epoch, "position": 4}
                break
        assert loader.state_dict() == {"epoch": epoch + 1, "position": 0}


def test_a_checkpoint_in_the_last_body_gives_one_empty_loop(comm: ftcomm.Communicator) -> None:
    """The others have not begun the next epoch: what is behind their loop follows."""
    first, second = loaders(comm)
    for _ in zip(first, second, strict=False):
        state = second.state_dict()
    assert state == {"epoch": 0, "position": 4}
    first, second = loaders(comm)
    for loader in (first, second):
        loader.load_state_dict(state)
    for epoch, batches in enumerate([0, 4, 4], 1):
        assert len([*zip(first, second, strict=False)]) == batches
        assert first.state_dict() == second.state_dict() == {"epoch": epoch, "position": 0}


def test_an_iterator_that_is_held_ends_no_other_epoch(comm: ftcomm.Communicator) -> None:
    loader, _ = loaders(comm)
    held = []
    for _ in range(3):
        held.append(iter(loader))
        assert len([*itertools.islice(held[-1], 4)]) == 4
    assert next(held[0], None) is None
    assert loader.state_dict() == {"epoch": 2, "position": 4}
    held.clear()
    assert loader.state_dict() == {"epoch": 3, "position": 0}


class Noisy(torch.utils.data.Dataset):
    """Rows with noise that is drawn as they are read, as by augmentations."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, row: int) -> list[float]:
        return [row, torch.rand(()).item(), np.random.rand(), random.random()]  # noqa: NPY002 - scripts do


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_worker_processes_draw_by_the_batch() -> None:
    """By epoch, step and rank, whatever the worker has drawn before; this process is not seeded."""

    def batches(rank: int, position: int) -> list[Any]:
        place: Any = SimpleNamespace(rank=rank, world_size=2)
        loader = ft.DataLoader(
            Noisy(), place, batch_size=3, seed=-1, shuffle=False, num_workers=2, collate_fn=list
        )
        loader.load_state_dict({"epoch": 0, "position": position})
        return [batch for _ in range(2) for batch in loader]

    state = torch.get_rng_state()
    whole = batches(0, 0)
    assert torch.equal(torch.get_rng_state(), state)
    assert whole[1:] == batches(0, 1)
    noise = [tuple(row[1:]) for batch in whole + batches(1, 0) for row in batch]
    assert len(set(noise)) == 48, "of two epochs on two ranks"


def test_ranks_have_rows_of_their_own_in_the_sets_order() -> None:
    class Place:
        rank, world_size = 1, 2

    place: Any = Place()
    assert list(ft.BatchSampler(9, place, batch_size=2, shuffle=False)) == [[2, 3], [6, 7]]
    with pytest.raises(ValueError, match="3 rows give no batch of 2 to each of 2 ranks"):
        ft.BatchSampler(3, place, batch_size=2)


def test_gradients_are_as_they_were_or_none(comm: ftcomm.Communicator) -> None:
    before, after = (
        torch.nn.ParameterList(torch.ones(2) for _ in range(4)),
        torch.nn.ParameterList(torch.zeros(2) for _ in range(4)),
    )
    before[0].grad, before[1].grad = torch.tensor([1.0, 2.0]), torch.zeros(2)
    before[2].grad = torch.tensor([-0.0, 0.0])
    after[3].grad = torch.ones(2)
    content = gradients_of(before)
    assert content.keys() == {0, 1, 2}
    assert content[1] == ZEROS  # no bytes for them
    restore_gradients(after, carried(comm, content))
    assert [p.grad is None for p in after] == [False, False, False, True]
    assert [p.grad.tolist() for p in after[:3]] == [[1, 2], [0, 0], [0, 0]]
    assert after[2].grad.signbit().tolist() == [True, False]


def test_gradients_of_each_parameter_are_kept_once() -> None:
    script = Script(1)
    assert gradients_of(trained_in(script.parts().values())) == {}
    alone = torch.nn.Parameter(torch.ones(1))
    parts = [script.optimizer, script.model, torch.optim.SGD([alone])]
    assert [*map(id, trained_in(parts))] == [*map(id, [*script.model.parameters(), alone])]


def test_gradients_that_no_checkpoint_holds_are_refused(comm: ftcomm.Communicator) -> None:
    model = torch.nn.Embedding(4, 2, sparse=True)
    ft.load(comm, model=model)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match=r"a gradient is sparse.*; call optimizer\.zero_grad"):
        ft.save(comm, model=model)
    assert ft.save(comm, model=model, gradients=False) == 1


def restored(comm: ftcomm.Communicator, part: Any, into: Any) -> Any:
    """`into` with the state of `part`."""
    content = carried(comm, to_content(state_of(part), []))
    restore(into, to_tree(content, []))
    return into


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 0, 2, 1), (2, 1, 0, 3)])
def test_elements_lie_as_they_did(comm: ftcomm.Communicator, order: tuple[int, ...]) -> None:
    tensor = torch.arange(120).reshape(2, 3, 4, 5).permute(order)
    assert not tensor.is_contiguous()
    content = carried(comm, to_content({"a": [tensor]}, []))
    (found,) = to_tree(content, [])["a"]
    assert (found.stride(), found.tolist()) == (tensor.stride(), tensor.tolist())
    with_gaps = torch.arange(20).reshape(4, 5)[:, ::2]
    assert carried(comm, to_content(with_gaps, [])).tolist() == with_gaps.tolist()


def test_tied_weights_are_written_once(comm: ftcomm.Communicator) -> None:
    encoder, decoder = torch.nn.Linear(400, 400), torch.nn.Linear(400, 400)
    decoder.weight = encoder.weight
    tied = torch.nn.Sequential(encoder, decoder)
    content = to_content({"model": tied.state_dict()}, [])
    assert len(pack_state(content)) < 1.1 * 400 * 400 * 4
    found = to_tree(carried(comm, content), [])["model"]
    assert found["0.weight"].data_ptr() == found["1.weight"].data_ptr()
    assert found["0.bias"].data_ptr() != found["1.bias"].data_ptr()
    tied.load_state_dict(found)
    assert tied[1].weight is tied[0].weight


def test_values_that_are_one_object_are_one_again(comm: ftcomm.Communicator) -> None:
    image = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    w, names = torch.ones(3), ["a"]
    parts = {"w": w, "images": [image, image], "names": (names, {"w": w, "n": names})}
    found = ft.load(comm, rng=False, **parts).values
    names = found["names"]
    assert (names[1]["w"] is found["w"], names[1]["n"] is names[0]) == (True, True)
    assert found["images"][0].data_ptr() == found["images"][1].data_ptr()


def test_a_part_that_contains_itself_is_refused(comm: ftcomm.Communicator) -> None:
    history: list[Any] = [1]
    history.append({"before": history})
    with pytest.raises(TypeError, match=r"state\['history'\]\[1\]\['before'\] contains itself"):
        ft.load(comm, history=history)


def test_a_tensor_that_differs_between_ranks_is_named_by_its_shape() -> None:
    state = {"weight": torch.zeros(2, 4), "loss": torch.tensor(0.5)}
    said = [leaf.what for leaf in leaves_of(pack_state(state))]
    assert said == ["dict", "Tensor torch.float32[2, 4]", "Tensor tensor(0.5000)"]


@pytest.mark.parametrize("make", [torch.optim.NAdam, torch.optim.ASGD, torch.optim.AdamW])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_values_of_an_optimizer_keep_their_dtypes(
    comm: ftcomm.Communicator, make: Any, dtype: torch.dtype
) -> None:
    if dtype is torch.bfloat16:
        pytest.importorskip("ml_dtypes")
    scripts = []
    for _ in range(2):
        parameter = torch.nn.Parameter(torch.ones(3, dtype=dtype))
        scripts.append((parameter, make([parameter])))
    (one, first), (other, second) = scripts
    one.grad = torch.ones_like(one)
    first.step()
    restored(comm, first, second)
    kept, found = first.state[one], second.state[other]
    assert {n: v.dtype for n, v in found.items()} == {n: v.dtype for n, v in kept.items()}
    assert all(torch.equal(found[name], kept[name]) for name in kept)


def test_a_state_of_no_parameter_is_kept_as_it_is(comm: ftcomm.Communicator) -> None:
    importlib.import_module("torch.distributed.tensor")  # as torch.compile does
    one, other = (torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]) for _ in range(2))
    one.state["all"] = {"steps": torch.ones(1, dtype=torch.float64)}
    assert restored(comm, one, other).state["all"]["steps"].dtype is torch.float64


def test_buffers_that_no_state_dict_has_are_kept(comm: ftcomm.Communicator) -> None:
    def made(value: float, rows: int | None) -> torch.nn.Module:
        module = torch.nn.Sequential(torch.nn.Linear(2, 2))
        module[0].register_buffer("n", torch.full((), value), persistent=False)
        rows_seen = None if rows is None else torch.ones(rows)
        module.register_buffer("seen", rows_seen, persistent=False)
        return module

    model = restored(comm, made(3.0, 4), made(0.0, None))
    assert (model[0].n.item(), model.seen.tolist()) == (3, [1, 1, 1, 1])
    assert "seen" not in model.state_dict()
    assert restored(comm, made(3.0, 4), made(0.0, 2)).seen.tolist() == [1, 1, 1, 1]
    assert state_of(torch.nn.Linear(2, 2)).keys() == {"weight", "bias"}


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("wraps", [True, False], ids=["wrapped", "plain"])
@pytest.mark.parametrize(
    ("kept", "begun"),
    [
        (torch.ones(2), None),
        (None, torch.ones(2)),
        (torch.ones(2), torch.zeros(3)),
        (torch.full((2,), 0.1, dtype=torch.float64), torch.zeros(2)),
        (None, None),
    ],
    ids=["made", "dropped", "another shape", "another dtype", "never made"],
)
def test_a_buffer_is_as_it_was_or_none(
    comm: ftcomm.Communicator, kept: Any, begun: Any, *, persistent: bool, wraps: bool
) -> None:
    """A forward pass has made or dropped it in a step that a restarted rank does not run again."""

    def made(value: Any) -> Any:
        module = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
        value = value if value is None else value.clone()
        module[0].register_buffer("seen", value, persistent=persistent)
        return ft.DDP(module, comm) if wraps else module

    found = next(m for m in restored(comm, made(kept), made(begun)).modules() if hasattr(m, "seen"))
    assert (found.seen is None) == (kept is None)
    assert kept is None or (found.seen.dtype is kept.dtype and torch.equal(found.seen, kept))
    assert ("seen" in found.state_dict()) == (persistent and kept is not None)


@pytest.mark.filterwarnings("ignore")  # scripts are old
def test_buffers_of_a_script_are_kept(comm: ftcomm.Communicator) -> None:
    first, other = (torch.jit.script(torch.nn.BatchNorm1d(2)) for _ in range(2))
    first(torch.ones(3, 2))
    assert restored(comm, first, other).num_batches_tracked.item() == 1


def test_a_buffer_that_is_not_registered_at_the_start_stays_out_of_the_state_dict(
    comm: ftcomm.Communicator,
) -> None:
    """Else the next checkpoint of a restarted rank would have other names than those of others."""
    first, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    first.register_buffer("seen", torch.ones(2), persistent=False)
    restored(comm, first, other)
    assert other.seen.tolist() == [1, 1]
    assert other.state_dict().keys() == {"weight", "bias"}


def test_parameters_are_frozen_as_they_were(comm: ftcomm.Communicator) -> None:
    """A restarted script does not run the step again in which it froze or trained some."""
    first, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    first.weight.requires_grad_(requires_grad=False)
    other.bias.requires_grad_(requires_grad=False)
    restored(comm, first, other)
    assert (other.weight.requires_grad, other.bias.requires_grad) == (False, True)
    restored(comm, torch.nn.Linear(2, 2), other)
    assert (other.weight.requires_grad, other.bias.requires_grad) == (True, True)


def test_a_gradient_that_is_conjugated_when_it_is_read_is_kept(comm: ftcomm.Communicator) -> None:
    one, other = (torch.nn.Parameter(torch.ones(1, dtype=torch.complex64)) for _ in range(2))
    one.grad = torch.tensor([1 + 2j]).conj()
    restore_gradients([other], carried(comm, gradients_of([one])))
    assert other.grad.tolist() == [1 - 2j]


def test_batches_in_any_order_are_refused(comm: ftcomm.Communicator) -> None:
    with pytest.raises(ftcomm.ConfigError, match=r"in_order=False: .*leave it True"):
        ft.DataLoader(torch.ones(4), comm, batch_size=2, num_workers=2, in_order=False)


@pytest.mark.parametrize(
    "seed", [np.int64(3), np.uint8(200), np.int64(2**62), 2**45, -(2**70), 2**64, True]
)
def test_any_integer_is_a_seed(comm: ftcomm.Communicator, seed: Any) -> None:
    one, other = (
        ft.DataLoader(torch.arange(16), comm, batch_size=4, seed=value)
        for value in (seed, int(seed))
    )
    assert [x.tolist() for x in one] == [x.tolist() for x in other]
    assert sorted(row for x in one for row in x.tolist()) == [*range(16)]


@pytest.mark.parametrize(
    ("seed", "rows"),
    [(0, [5, 4, 2, 6, 7, 3, 1, 0]), (7, [2, 3, 5, 6, 0, 1, 4, 7]), (-7, [7, 2, 3, 0, 5, 1, 4, 6])],
)
def test_a_seed_gives_the_order_that_it_has_always_given(
    comm: ftcomm.Communicator, seed: int, rows: list[int]
) -> None:
    """A job may go on from a checkpoint of an earlier release."""
    sampler = ft.BatchSampler(8, comm, batch_size=8, seed=seed)
    sampler.begin_next_epoch()
    assert [*sampler] == [rows]


def test_a_seed_that_is_no_integer_is_refused(comm: ftcomm.Communicator) -> None:
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        ft.BatchSampler(8, comm, batch_size=2, seed=0.5)
