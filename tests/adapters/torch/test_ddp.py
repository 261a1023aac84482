"""`ftcomm.torch.DDP`: buckets, gradients beside those of plain modules, and messages."""

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ftcomm  # noqa: E402 - skipped before, where torch is missing
import ftcomm.torch as ft  # noqa: E402 - likewise
from ftcomm.torch.gradient_bucket import cut  # noqa: E402 - likewise
from ftcomm.torch.parts import restore, state_of  # noqa: E402 - likewise
from ftcomm.torch.reducer import GradientReducer  # noqa: E402 - likewise
from tests.adapters.jobs import attempt  # noqa: E402 - likewise

SCRIPTS = Path(__file__).parent / "scripts"
MISMATCH = """
import torch, ftcomm.torch as ft

with ft.init() as comm:
    model = ft.DDP(torch.nn.Linear(3, 2))
    ft.load(comm, model=model)
    if comm.rank:
        comm.allreduce(1)
    model(torch.ones(1, 3)).sum().backward()
"""
OTHER_ORDER = """
import torch, ftcomm.torch as ft

with ft.init() as comm:
    class Pair(torch.nn.Module):
        def __init__(self, names):
            super().__init__()
            for name in names:
                self.add_module(name, torch.nn.Linear(3, 3))
        def forward(self, x):
            return self.left(x) + self.right(x)
    model = ft.DDP(Pair(("left", "right") if comm.rank else ("right", "left")), broadcast=False)
    ft.load(comm, model=model)
    model(torch.ones(1, 3)).sum().backward()
"""
DIFFERS = """
import torch, ftcomm.torch as ft

with ft.init() as comm:
    ft.load(comm, rng=False, w=torch.zeros(4))
    ft.save(comm, rng=False, w=torch.full((4,), float(comm.rank)))
"""


@pytest.mark.process
def test_gradients_are_the_averages_of_those_of_plain_modules(tmp_path: Path) -> None:
    status, said = attempt(SCRIPTS / "gradients.py", tmp_path / "job", workers=2)
    assert (status, said.count("gradients agree")) == (0, 2), said[-3000:]


@pytest.mark.process
def test_a_mismatch_names_the_line_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "mismatch.py"
    script.write_text(MISMATCH)
    status, said = attempt(script, tmp_path / "job", workers=2)
    assert status == 72, said
    assert "rank 0 called allreduce(op=mean, float32[10], tag=#" in said
    assert ") at mismatch.py:9 but" in said


@pytest.mark.process
def test_parameters_in_another_order_are_found_though_all_sizes_agree(tmp_path: Path) -> None:
    script = tmp_path / "order.py"
    script.write_text(OTHER_ORDER)
    status, said = attempt(script, tmp_path / "job", workers=2)
    assert status == 72, said
    assert "they differ in tag: #" in said


@pytest.mark.process
def test_a_tensor_that_differs_between_ranks_is_named(tmp_path: Path) -> None:
    script = tmp_path / "differs.py"
    script.write_text(DIFFERS)
    status, said = attempt(script, tmp_path / "job", workers=2)
    assert status == 72, said
    where = "different states to checkpoint() at differs.py:6; state['w']"
    assert f"{where} (Tensor torch.float32[4]) has other values on rank 1" in said


def test_buckets_follow_from_order_dtypes_and_sizes() -> None:
    sizes = [(4, "f"), (4, "f"), (1, "d"), (20, "f"), (2, "f"), (1, "d")]
    dtypes = {"f": torch.float32, "d": torch.float64}
    tensors = [torch.zeros(size, dtype=dtypes[kind]) for size, kind in sizes]
    assert cut(tensors, 32) == [[0, 1], [3], [4], [2, 5]]
    assert cut(tensors, 10**6) == [[0, 1, 3, 4], [2, 5]]
    assert cut([], 32) == []


class Recorder:
    """The communicator of a rank whose calls are noted, and return what they were given."""

    def __init__(self) -> None:
        self.tags: list[str] = []

    def allreduce(self, *_: Any, tag: str, **_options: Any) -> None:
        self.tags.append(tag)

    def iallreduce(self, *_: Any, tag: str, **_options: Any) -> Any:
        self.tags.append(tag)
        return SimpleNamespace(wait=lambda: None)


def test_buckets_are_begun_in_the_order_of_their_numbers() -> None:
    """Their names tell them apart; gradients come in another order, as of what is used last."""
    layers = {name: torch.nn.Parameter(torch.ones(2)) for name in "abcd"}
    comm: Any = Recorder()
    reducer = GradientReducer(comm, [*layers.items()][::-1], bucket_bytes=8)
    for order in ("abcd", "dbca", "ca"):
        total = torch.ones(2)
        for name in order:
            total = total * layers[name]
        total.sum().backward()
    assert comm.tags == [*"dcba"] * 3
    reducer.remove()
    (layers["a"] * layers["b"]).sum().backward()
    assert comm.tags == [*"dcba"] * 3


def test_buffers_are_taken_before_a_pass_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    with ftcomm.init("none") as comm:
        model = ft.DDP(torch.nn.BatchNorm1d(2), comm)
        monkeypatch.setattr(model, "broadcast_buffers", lambda: taken.append(moment))
        for moment in ("train", "eval"):
            model.train(moment == "train")
            model(torch.ones(3, 2))
        moment = "no_sync"
        with model.train().no_sync():
            model(torch.ones(3, 2))
    assert taken == ["train"]


def test_a_state_dict_is_the_modules() -> None:
    with ftcomm.init("none") as comm:
        plain = torch.nn.Linear(2, 2)
        model = ft.DDP(plain, comm)
        assert model.state_dict().keys() == plain.state_dict().keys() == {"weight", "bias"}
        model.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.ones(2)})
        assert plain.bias.tolist() == [1, 1]


def test_a_module_that_contains_one_is_restored() -> None:
    """Its state dict has the names that it would have without the wrapper."""

    def nested() -> Any:
        inner = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
        return torch.nn.Sequential(ft.DDP(inner, comm), torch.nn.Linear(2, 1))

    with ftcomm.init("none") as comm:
        one, other = nested(), nested()
        one(torch.rand(3, 2)).sum().backward()
        state = state_of(one)
        assert {"0.1.weight", "0.0.running_mean", "1.weight"} <= state.keys()
        restore(other, state)
        assert str(state_of(other)) == str(state)
        other.load_state_dict(one.state_dict())
        with pytest.raises(RuntimeError, match=r'Missing key.*"0.module.1.bias"'):
            other.load_state_dict({k: v for k, v in one.state_dict().items() if k != "0.1.bias"})


def test_what_cannot_be_averaged_is_refused_by_name() -> None:
    frozen = torch.nn.Linear(2, 2).requires_grad_(requires_grad=False)
    with ftcomm.init("none") as comm:
        with pytest.raises(ValueError, match="no parameter that requires a gradient"):
            ft.DDP(frozen, comm)
        with pytest.raises(TypeError, match="the tensor is on meta"):
            ft.DDP(torch.nn.Linear(2, 2, device="meta"), comm)
        model = ft.DDP(torch.nn.Embedding(4, 2, sparse=True), comm)
        with pytest.raises(TypeError, match="the tensor is sparse_coo"):
            model(torch.tensor([1])).sum().backward()


def test_parameters_may_be_frozen_for_a_while() -> None:
    with ftcomm.init("none") as comm:
        model = ft.DDP(torch.nn.Linear(2, 2), comm)
        for trains in (True, False, True):
            model.module.bias.requires_grad_(trains)
            model.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            assert [p.grad is not None for p in model.module.parameters()] == [True, trains]


@pytest.mark.parametrize("converts", ["before", "between"])
def test_gradients_lie_as_their_parameters(converts: str) -> None:
    def trained(comm: ftcomm.Communicator | None) -> list[torch.Tensor]:
        torch.manual_seed(1)
        module: Any = torch.nn.Conv2d(3, 4, 3)
        if converts == "before":
            module.to(memory_format=torch.channels_last)
        model = module if comm is None else ft.DDP(module, comm)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, fused=True)
        for step in range(4):
            if step == 2:
                module.to(memory_format=torch.channels_last)
                optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, fused=True)
            model(torch.randn(2, 3, 5, 5)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=step == 2)
        return [*module.parameters()]

    with ftcomm.init("none") as comm:
        assert [*map(torch.equal, trained(comm), trained(None))] == [True, True]


def test_a_gradient_that_the_module_has_moved_is_averaged() -> None:
    with ftcomm.init("none") as comm:
        module: Any = torch.nn.Conv2d(3, 4, 3)
        model = ft.DDP(module, comm)
        for _ in range(2):
            model(torch.ones(1, 3, 3, 3)).sum().backward()
            module.to(memory_format=torch.channels_last)
        model(torch.ones(1, 3, 3, 3)).sum().backward()
        (bucket,) = model._reducer._buckets
        places = [flat.data_ptr() for flat in bucket._flat]
        gradients = [parameter.grad for parameter in [*module.parameters()][::-1]]
        assert [gradient.data_ptr() for gradient in gradients] == places
        assert gradients[1].is_contiguous(memory_format=torch.channels_last)
        assert gradients[1].tolist() == torch.full((4, 3, 3, 3), 3.0).tolist()


def test_a_moved_gradient_that_is_missing_now_counts_as_zeros() -> None:
    """The bucket had the one of an earlier pass, which other ranks would have got."""

    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(3, 4, 3)

        def forward(self, x: Any, *, both: bool) -> Any:
            return self.left(x) + self.right(x) if both else self.left(x)

    x = torch.ones(1, 3, 3, 3)
    with ftcomm.init("none") as comm:
        module: Any = Branches()
        model = ft.DDP(module, comm)
        model(x, both=True).sum().backward()
        module.to(memory_format=torch.channels_last)
        model.zero_grad()
        model(x, both=False).sum().backward()
        (bucket,) = model._reducer._buckets
        assert module.right.weight.grad is None
        assert [bool(flat.any()) for flat in bucket._flat] == [False, False, True, True]


@pytest.mark.parametrize("passes", [0, 1])
def test_parameters_that_are_trained_later_are_refused(passes: int) -> None:
    with ftcomm.init("none") as comm:
        module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        module[0].requires_grad_(requires_grad=False)
        model = ft.DDP(module, comm)
        for _ in range(passes):
            model(torch.ones(1, 2)).sum().backward()
        module[0].bias.requires_grad_()
        with torch.no_grad():
            model(torch.ones(1, 2))
        with pytest.raises(ftcomm.ConfigError, match=r"wrapped it: 0\.bias .*wrap it with all"):
            model(torch.ones(1, 2))


def test_parameters_that_are_added_before_the_first_pass_are_refused() -> None:
    with ftcomm.init("none") as comm:
        model = ft.DDP(torch.nn.Sequential(torch.nn.Linear(2, 2)), comm)
        model.module.append(torch.nn.Linear(2, 2))
        with pytest.raises(ftcomm.ConfigError, match=r"wrapped it: 1\.weight, 1\.bias "):
            model(torch.ones(1, 2))


@pytest.mark.parametrize("call", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_is_refused_and_that_of_the_module_is_plain(call: Any) -> None:
    with ftcomm.init("none") as comm:
        model = ft.DDP(torch.nn.Linear(2, 2), comm)
        with pytest.raises(TypeError, match=r"copy its module: copy\.deepcopy\(model\.module\)"):
            call(model)
        plain = copy.deepcopy(model.module)
        plain(torch.ones(1, 2)).sum().backward()
        assert [p.grad for p in model.parameters()] == [None, None]


def test_without_a_communicator_it_says_how_to_get_one() -> None:
    with pytest.raises(ftcomm.ConfigError, match="no open communicator - call it inside one"):
        ft.DDP(torch.nn.Linear(2, 2))


X = torch.ones(1, 2)


def calls_of(comm: ftcomm.Communicator, loss: Any) -> int:
    before = comm.seqno
    loss.sum().backward()
    return comm.seqno - before


def test_the_last_wrapper_of_a_module_averages_its_gradients_alone() -> None:
    """Two would average one that is on its way, and so give wrong means."""
    with ftcomm.init("none") as comm:
        net = torch.nn.Linear(2, 2)
        first = ft.DDP(net, comm)
        second = ft.DDP(net, comm)
        assert calls_of(comm, second(X)) == 1
        assert calls_of(comm, first(X)) == 1
        del second
        with pytest.raises(ftcomm.ConfigError, match=r"not average .* - wrap the module again"):
            first(X)


def test_a_wrapper_in_a_wrapped_module_leaves_the_gradients_to_the_outer_one() -> None:
    with ftcomm.init("none") as comm:
        inner = ft.DDP(torch.nn.Linear(2, 2), comm)
        outer = ft.DDP(torch.nn.Sequential(inner, torch.nn.Linear(2, 1)), comm)
        assert calls_of(comm, outer(X)) == 1
        with outer.no_sync():
            assert calls_of(comm, outer(X)) == 0


def test_a_wrapper_that_another_one_has_replaced_in_part_is_refused() -> None:
    with ftcomm.init("none") as comm:
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        whole = ft.DDP(net, comm)
        part = ft.DDP(net[0], comm)
        with pytest.raises(ftcomm.ConfigError, match="another one has wrapped some of its param"):
            whole(X)
        with torch.no_grad():
            whole(X)
        rest = ft.DDP(net[1], comm)
        assert calls_of(comm, whole(X)) == 2
        del part, rest


@pytest.mark.parametrize("end", ["drop", "release"])
def test_a_module_without_its_wrapper_is_a_plain_one(end: str) -> None:
    """A backward pass on one rank alone would end the job."""
    with ftcomm.init("none") as comm:
        net = torch.nn.Linear(2, 2)
        model = ft.DDP(net, comm)
        assert calls_of(comm, model(X)) == 1
        if end == "release":
            model.release()
            with pytest.raises(ftcomm.ConfigError, match="it was released, or another one"):
                model(X)
        else:
            del model
        assert calls_of(comm, net(X)) == 0
        assert not net.weight._post_accumulate_grad_hooks


def test_gradients_of_an_output_are_averaged_behind_its_wrapper() -> None:
    with ftcomm.init("none") as comm:
        loss = ft.DDP(torch.nn.Linear(2, 2), comm)(X)
        assert calls_of(comm, loss) == 1


def test_a_wrapper_that_was_not_made_leaves_no_hooks() -> None:
    with ftcomm.init("none") as comm:
        net = torch.nn.Linear(2, 2)
        net.register_buffer("other", torch.ones(2).to(torch.float8_e5m2))
        with pytest.raises(TypeError, match="float8_e5m2"):
            ft.DDP(net, comm)
        assert calls_of(comm, net(X)) == 0


class Masked(torch.nn.Module):
    """A layer whose backward pass needs a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.register_buffer("mask", torch.ones(2))

    def forward(self, x: Any) -> Any:
        return self.layer(x) * self.mask


@pytest.mark.parametrize("make", [lambda: torch.nn.BatchNorm1d(2), Masked], ids=["norm", "mask"])
@pytest.mark.parametrize("trains", [True, False])
def test_two_forward_passes_may_come_before_one_backward_pass(make: Any, trains: bool) -> None:
    with ftcomm.init("none") as comm:
        inner = make()
        model = ft.DDP(torch.nn.Sequential(torch.nn.Linear(2, 2), inner), comm)
        inner.train(trains)
        x = torch.arange(6.0).reshape(3, 2)
        assert calls_of(comm, model(x).square() + model(x + 1)) == 1


def test_a_parameter_that_is_an_output_gets_no_hook_in_each_pass() -> None:
    """Its own gradient begins the backward pass."""

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.ones(()))

        def forward(self, x: Any) -> Any:
            return self.layer(x), self.scale

    with ftcomm.init("none") as comm:
        model = ft.DDP(Scaled(), comm)
        for _ in range(3):
            outputs, scale = model(X)
            assert calls_of(comm, outputs * scale) == 1
        assert calls_of(comm, model(X)[1]) == 1
        assert not model.module.scale._backward_hooks
