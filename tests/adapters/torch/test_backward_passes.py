"""Backward passes of `ftcomm.torch.DDP`: hooks of the script, `no_sync`, and an interrupt."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ftcomm  # noqa: E402 - skipped before, where torch is missing
import ftcomm.torch as ft  # noqa: E402 - likewise
from ftcomm.testing import local_group  # noqa: E402 - likewise
from ftcomm.torch.reducer import GradientReducer  # noqa: E402 - likewise

X = torch.ones(1, 2)


class Recorder:
    """The communicator of a rank whose inputs are noted as they are when a call begins."""

    def __init__(self) -> None:
        self.inputs: list[list[float]] = []  # each with the mark of its parameter at its end

    def allreduce(self, array: Any, **_: Any) -> None:
        self.inputs.append(array.tolist())

    def iallreduce(self, array: Any, **_: Any) -> Any:
        self.inputs.append(array.tolist())
        return SimpleNamespace(wait=lambda: None)


def multiply(parameter: Any) -> None:
    parameter.grad.mul_(100)


def assign(parameter: Any) -> None:
    parameter.grad = parameter.grad * 100


@pytest.mark.parametrize("hook", [multiply, assign])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_a_hook_makes_of_a_gradient_is_averaged(hook: Any, moment: str) -> None:
    """Registered before the wrapper or after it, the hook runs before the mean."""
    layers = {name: torch.nn.Parameter(torch.ones(1)) for name in "abc"}
    comm: Any = Recorder()
    for turn in ("before", "after"):
        if turn == moment:
            for parameter in layers.values():
                parameter.register_post_accumulate_grad_hook(hook)
        if turn == "before":
            reducer = GradientReducer(comm, [*layers.items()][::-1], bucket_bytes=1)
    for _ in range(2):
        (layers["a"] * layers["b"] * layers["c"]).backward()
        assert comm.inputs == [[100.0, 1.0]] * 3
        assert [parameter.grad.item() for parameter in layers.values()] == [100.0] * 3
        comm.inputs.clear()
        for parameter in layers.values():
            parameter.grad = None
    reducer.remove()


def test_all_ranks_have_the_mean_of_gradients_that_hooks_have_changed() -> None:
    def trained(comm: ftcomm.Communicator) -> list[list[float]]:
        net = torch.nn.Sequential(*(torch.nn.Linear(1, 1, bias=False) for _ in range(3)))
        for parameter in net.parameters():
            torch.nn.init.ones_(parameter)
        model = ft.DDP(net, comm, bucket_bytes=1)
        net[0].weight.register_post_accumulate_grad_hook(multiply)
        net[1].weight.register_post_accumulate_grad_hook(assign)
        net[2].weight.register_post_accumulate_grad_hook(assign)
        found = []
        for _ in range(2):
            model(torch.full((1, 1), 1.0 + comm.rank)).sum().backward()
            found.append([parameter.grad.item() for parameter in net.parameters()])
            model.zero_grad()
        return found

    with local_group(2) as group:
        assert group.run(trained) == [[[150.0] * 3] * 2] * 2


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_hook_that_takes_the_gradient_away_is_refused(moment: str) -> None:
    """As of an optimizer that steps in it: each rank would train by its own gradients."""

    def drop(parameter: Any) -> None:
        parameter.grad = None

    with ftcomm.init("none") as comm:
        net = torch.nn.Linear(2, 1)
        if moment == "before":
            net.bias.register_post_accumulate_grad_hook(drop)
        model = ft.DDP(net, comm)
        if moment == "after":
            net.bias.register_post_accumulate_grad_hook(drop)
        with pytest.raises(ftcomm.ConfigError, match=r"gradient of bias to None .*behind backward"):
            model(X).sum().backward()


Passes = Callable[[Any, Any], None]


def first_alone(averaged: Any, _: Any) -> None:
    averaged.backward()


def one_by_one(averaged: Any, adding: Any) -> None:
    adding.backward()
    averaged.backward()


def both_at_once(averaged: Any, adding: Any) -> None:
    (averaged + adding).backward()


def averaged_first(averaged: Any, adding: Any) -> None:
    averaged.backward()
    adding.backward()


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        (first_alone, [1.5, 1.5]),
        (one_by_one, [3.0, 3.0]),
        (both_at_once, [3.0, 3.0]),
        (averaged_first, [2.5, 3.5]),
    ],
)
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_the_forward_pass_decides_whether_gradients_are_averaged(
    passes: Passes, expected: list[float], *, inside: bool
) -> None:
    """Another one may come before its backward pass, which may be under `no_sync` or not."""

    def trained(comm: ftcomm.Communicator) -> float:
        net = torch.nn.Linear(1, 1, bias=False)
        model = ft.DDP(net, comm)
        x = torch.full((1, 1), 1.0 + comm.rank)
        averaged = model(x).sum()
        with model.no_sync():
            adding = model(x).sum()
            if inside:
                passes(averaged, adding)
        if not inside:
            passes(averaged, adding)
        return float(net.weight.grad)

    with local_group(2) as group:
        assert group.run(trained) == expected


class Interrupted(torch.autograd.Function):
    """Ends a backward pass as Ctrl-C does, where `is_on` says so."""

    is_on = True

    @staticmethod
    def forward(_: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        if Interrupted.is_on:
            raise KeyboardInterrupt
        return gradient


def test_a_single_rank_goes_on_behind_a_backward_pass_that_was_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a notebook; no other rank has begun other collectives."""

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)

        def forward(self, x: Any) -> Any:
            return self.last(Interrupted.apply(self.first(x)))

    with ftcomm.init("none") as comm:
        model = ft.DDP(Layers(), comm, bucket_bytes=1)
        with pytest.raises(KeyboardInterrupt):
            model(X).sum().backward()
        monkeypatch.setattr(Interrupted, "is_on", False)
        model.zero_grad()
        model(X).sum().backward()
        plain = copy.deepcopy(model.module)
        plain.zero_grad()
        plain(X).sum().backward()
        gradients = zip(model.module.parameters(), plain.parameters(), strict=True)
        assert [torch.equal(one.grad, other.grad) for one, other in gradients] == [True] * 4
