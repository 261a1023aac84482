"""Gradients of DDP on two ranks, compared with those of the plain module on each of them."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ftcomm
import ftcomm.torch as ft


class Branches(nn.Module):
    """Three layers, of which a pass uses those that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.layers[0].weight
        self.recompute: bool | None = None  # how, None for not at all

    def forward(self, x: Any, used: tuple[int, ...] = (0, 1, 2)) -> Any:
        for number in used:
            layer = self.layers[number]
            if self.recompute is None:
                x = layer(x).tanh()
            else:
                x = checkpoint(layer, x, use_reentrant=self.recompute)
        return {"out": [self.tied(x)]}


def averaged(comm: ftcomm.Communicator, plain: nn.Module) -> list[Any]:
    """The average of what each rank has; None where no rank has any."""
    found = []
    for parameter in plain.parameters():
        missing = parameter.grad is None
        if comm.allreduce(not missing, op="lor"):
            own = torch.zeros_like(parameter) if missing else parameter.grad
            found.append(ft.as_tensor(comm.allreduce(ft.as_array(own), op="mean")))
        else:
            found.append(None)
    return found


def same(comm: ftcomm.Communicator, wrapped: nn.Module, plain: nn.Module) -> None:
    expected = averaged(comm, plain)
    for parameter, gradient in zip(wrapped.parameters(), expected, strict=True):
        if gradient is None:
            assert parameter.grad is None
        else:
            assert torch.equal(parameter.grad, gradient)


def losses(model: Callable[..., Any], used: tuple[int, ...], seed: int) -> Any:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
    return model(x.requires_grad_(), used)["out"][0].square().sum()


def refused(call: Callable[[], Any], text: str) -> None:
    try:
        call()
    except RuntimeError as error:
        assert text in str(error), error  # noqa: PT017 - a script without pytest
    else:
        raise AssertionError(text)


def main() -> None:
    with ft.init() as comm:
        torch.manual_seed(comm.rank)  # other parameters on each rank: rank 0's count
        wrapped = ft.DDP(Branches(), bucket_bytes=60)
        plain = copy.deepcopy(wrapped.module)
        for hooked in plain.parameters():
            hooked._post_accumulate_grad_hooks = None
        weights = [p.detach().numpy().tobytes() for p in wrapped.parameters()]
        assert comm.allgather_object(weights) == [weights] * comm.world_size

        def clear(*, to_none: bool) -> None:
            wrapped.zero_grad(set_to_none=to_none)
            plain.zero_grad(set_to_none=to_none)

        every, own = (0, 1, 2), (0, comm.rank + 1)
        for used in (every, own, (0,), every):
            clear(to_none=True)
            losses(wrapped, used, comm.rank).backward()
            losses(plain, used, comm.rank).backward()
            same(comm, wrapped, plain)
        clear(to_none=False)
        places = [p.grad.data_ptr() for p in wrapped.parameters()]
        with wrapped.no_sync():
            losses(wrapped, (0, 1), 5 + comm.rank).backward()
        losses(plain, (0, 1), 5 + comm.rank).backward()
        losses(wrapped, own, 7 + comm.rank).backward()
        losses(plain, own, 7 + comm.rank).backward()
        same(comm, wrapped, plain)
        assert places == [p.grad.data_ptr() for p in wrapped.parameters()]
        clear(to_none=True)
        wrapped.module.recompute = plain.recompute = False
        losses(wrapped, every, 9 + comm.rank).backward()
        losses(plain, every, 9 + comm.rank).backward()
        same(comm, wrapped, plain)
        wrapped.module.recompute = True  # the tied weight gets a gradient in two passes
        refused(lambda: losses(wrapped, every, 1).backward(), "pass use_reentrant=False")
        refused(lambda: losses(wrapped, every, 1), "let the error end the script")
        print("gradients agree")


if __name__ == "__main__":
    main()
