"""Gradient buckets: gradients of several parameters in one tensor, reduced by one collective."""

from collections.abc import Sequence
from typing import Any

import torch

import ftcomm
from ftcomm.torch.tensors import as_array, check_tensor

BUCKET_BYTES = 25 * 1024 * 1024  # as torch's own DDP


def cut(tensors: Sequence[torch.Tensor], bucket_bytes: int) -> list[list[int]]:
    """Numbers of the tensors of each bucket; it follows from their order, dtypes and sizes alone.

    A bucket has tensors of one dtype. It is closed before it would pass `bucket_bytes`, so a larger
    tensor has one of its own. Buckets are in the order of their last tensors: that in which they
    fill, if tensors come in order.
    """
    done: list[list[int]] = []
    filling: dict[Any, tuple[int, list[int]]] = {}
    for number, tensor in enumerate(tensors):
        size, numbers = filling.get(tensor.dtype, (0, []))
        nbytes = tensor.numel() * tensor.element_size()
        if numbers and size + nbytes > bucket_bytes:
            done.append(numbers)
            size, numbers = 0, []
        filling[tensor.dtype] = size + nbytes, [*numbers, number]
    return sorted([*done, *(numbers for _, numbers in filling.values())], key=lambda b: b[-1])


def laid_out(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A view of `flat` whose elements lie as those of `like`, such as channels_last.

    A fused optimizer goes through a parameter and its gradient as they lie.
    """
    # torch's own rule for what has just been made like another tensor: dense, or in order.
    strides = torch.empty_like(like, device="meta").stride()
    return flat.as_strided(like.shape, strides)


class GradientBucket:
    """Gradients of some parameters, one behind the other.

    Behind them is a mark for each parameter, which is averaged with them: it is not zero if the
    parameter had a gradient on any rank.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], names: Sequence[str]) -> None:
        """Reserve the memory; raises TypeError.

        Args:
            parameters: of one dtype.
            names: of the parameters: they tell the collectives of buckets of one size apart.
        """
        for parameter in parameters:
            check_tensor(parameter)
        self._parameters, self._names = list(parameters), list(names)
        self._tag = " ".join(names)
        sizes = [parameter.numel() for parameter in parameters]
        flat = torch.zeros(sum(sizes) + len(sizes), dtype=parameters[0].dtype)
        *parts, self._marks = flat.split([*sizes, len(sizes)])
        # A gradient is such a view: backward adds to it, the optimizer reads it.
        self._flat = parts
        self._views = [laid_out(p, like) for p, like in zip(parts, parameters, strict=True)]
        self._array = as_array(flat)
        self._given = [False] * len(parameters)
        self._missing = len(parameters)
        self._handle: ftcomm.Handle[Any] | None = None

    @property
    def is_full(self) -> bool:
        """Tell whether every parameter has given its gradient in this backward pass."""
        return self._missing == 0

    def take(self, number: int) -> None:
        """Parameter `number` of the bucket has its gradient; raises ConfigError or RuntimeError."""
        if self._given[number]:
            raise RuntimeError(
                "a parameter got its gradient twice in one backward pass, as where it is used in "
                "two parts under checkpoint(..., use_reentrant=True); pass use_reentrant=False"
            )
        self._place(number)
        self._given[number] = True
        self._missing -= 1

    def start(self, comm: ftcomm.Communicator) -> None:
        """Begin to average; parameters without a gradient add zeros."""
        self._complete()
        self._handle = comm.iallreduce(self._array, op="mean", out=self._array, tag=self._tag)

    def average(self, comm: ftcomm.Communicator) -> None:
        """The same, and wait for it: where nothing is left to compute, a thread would only cost."""
        self._complete()
        comm.allreduce(self._array, op="mean", out=self._array, tag=self._tag)

    def finish(self) -> None:
        """Wait for the averages, and be ready for the next backward pass.

        Where no rank had a gradient, the parameter keeps what it had: mostly none.
        """
        self._wait()
        if not all(self._given):
            for number, mark in enumerate(self._marks.tolist()):
                if mark and not self._given[number]:
                    self._parameters[number].grad = self._view_of(number)
        self.reset()

    def reset(self) -> None:
        """Be ready for the next backward pass, once nothing is on its way."""
        self._wait()
        self._given = [False] * len(self._parameters)
        self._missing = len(self._parameters)

    def _wait(self) -> None:
        if self._handle is not None:
            self._handle.wait()
            self._handle = None

    def _complete(self) -> None:
        for number, given in enumerate(self._given):
            if given:
                self._place(number)  # a hook may have put another tensor there since
            else:
                self._place_kept(number)
        self._marks.copy_(torch.tensor(self._given))

    def _place_kept(self, number: int) -> None:
        """A gradient from passes under `no_sync` counts; without one, zeros do."""
        if self._parameters[number].grad is None:
            self._view_of(number).zero_()
        else:
            self._place(number)
            self._given[number] = True

    def _place(self, number: int) -> None:
        """Have the gradient in the bucket: it is there, or is copied."""
        parameter, gradient = self._parameters[number], self._parameters[number].grad
        if gradient is self._views[number] and not self._is_moved(number):
            return
        if gradient is None:
            raise ftcomm.ConfigError(
                f"a hook has set the gradient of {self._names[number]} to None in the backward "
                "pass, before the mean over all ranks",
                remedy="step the optimizer and clear gradients behind backward(); set a gradient "
                "that does not count to zeros",
            )
        if gradient.layout is not torch.strided:
            check_tensor(gradient)
        view = self._view_of(number)
        view.copy_(gradient.detach())
        parameter.grad = view

    def _view_of(self, number: int) -> torch.Tensor:
        """The place in the bucket, with the elements as the parameter has them now."""
        parameter, view = self._parameters[number], self._views[number]
        if self._is_moved(number) or view.stride() != parameter.stride():
            view = self._views[number] = laid_out(self._flat[number], parameter)
        return view

    def _is_moved(self, number: int) -> bool:
        """Tell whether the module's ``to()`` has given the view, a gradient, memory of its own."""
        return bool(self._views[number].data_ptr() != self._flat[number].data_ptr())
