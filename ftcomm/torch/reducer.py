"""Gradient reducer: averages gradients while the backward pass goes on.

A collective is a position, so every rank must begin the same ones in the same order, and so must a
restarted rank.  Buckets are therefore begun in the order of their numbers, whatever the order in
which they fill: one that is full waits for those before it.  When the backward pass has ended, the
last one is begun, and those that are not full by then.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch

import ftcomm
from ftcomm.torch.gradient_bucket import GradientBucket, cut


class GradientReducer:
    """The buckets of one module.

    Attributes:
        is_on: gradients of the next backward pass are averaged, else they add up here.
        is_active: a backward pass has begun, and has not ended.
    """

    def __init__(
        self,
        comm: ftcomm.Communicator,
        named: Sequence[tuple[str, torch.nn.Parameter]],
        bucket_bytes: int,
    ) -> None:
        """Hook into the parameters' gradients.

        Args:
            comm: the job's communicator.
            named: parameters that are trained, with their names, in the order in which they are to
                be reduced. Ranks that have the same sizes under other names are found out.
            bucket_bytes: how large a bucket of several gradients may be.

        Raises:
            TypeError: gradients of one of them are not carried.
        """
        self._comm = comm
        self.is_on, self.is_active = True, False
        self._started = 0
        self._buckets: list[GradientBucket] = []
        for numbers in cut([parameter for _, parameter in named], bucket_bytes):
            members = [named[number][1] for number in numbers]
            bucket = GradientBucket(members, " ".join(_label(*named[number]) for number in numbers))
            self._buckets.append(bucket)
            for place, parameter in enumerate(members):
                hook = functools.partial(self._on_gradient, bucket, place)
                parameter.register_post_accumulate_grad_hook(hook)

    def watch(self, outputs: Any) -> None:
        """Begin with the backward pass from any of `outputs`, at its outermost begin.

        Otherwise a gradient begins it, which may come in a pass that a reentrant checkpoint makes,
        and each such pass would average all buckets.
        """
        for output in torch.utils._pytree.tree_leaves(outputs):  # noqa: SLF001 - as torch's FSDP does
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(self.begin)

    def begin(self, *_: Any) -> None:
        """A backward pass begins: called by its first hook, once or more often."""
        if self.is_on and not self.is_active:
            self.is_active = True
            # Runs at the end of the outermost pass, on the thread that called backward.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)  # noqa: SLF001 - as torch's FSDP does

    def _on_gradient(self, bucket: GradientBucket, place: int, _: torch.Tensor) -> None:
        if not self.is_on:
            return
        self.begin()
        bucket.take(place)
        if bucket.is_full:
            self._start_full()

    def _start_full(self) -> None:
        last = len(self._buckets) - 1  # which has nothing to overlap with
        while self._started < last and self._buckets[self._started].is_full:
            self._start_next()

    def _start_next(self) -> None:
        self._buckets[self._started].start(self._comm)
        self._started += 1

    def _finish(self) -> None:
        while self._started < len(self._buckets) - 1:
            self._start_next()
        self._buckets[-1].average(self._comm)
        for bucket in self._buckets:
            bucket.finish()
        self._started, self.is_active = 0, False


def _label(name: str, parameter: torch.nn.Parameter) -> str:
    """The name, and how the elements lie if that is not in order."""
    return name if parameter.is_contiguous() else f"{name}{parameter.stride()}"
