"""Gradient reducer: averages gradients while the backward pass goes on.

A collective is a position, so every rank must begin the same ones in the same order, and so must a
restarted rank.  Buckets are therefore begun in the order of their numbers, whatever the order in
which they fill: one that is full waits for those before it.  When the backward pass has ended, the
last one is begun, and those that are not full by then.

A bucket that has become full is begun by the next gradient.  The parameter that filled it may have
more hooks, of the script, which run behind that of the reducer and change the gradient.

A parameter's hooks outlive who has made them.  These hold the reducer weakly and go with it: one
that nobody has any more would go on with its collectives, and two would average a gradient while it
is on its way.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

import ftcomm
from ftcomm.torch.gradient_bucket import GradientBucket, cut


class GradientReducer:
    """The buckets of one module, as long as a wrapper or the graph of an output holds it."""

    def __init__(
        self,
        comm: ftcomm.Communicator,
        named: Sequence[tuple[str, torch.nn.Parameter]],
        bucket_bytes: int,
    ) -> None:
        """Hook into the parameters' gradients, in place of earlier reducers that have one of them.

        Args:
            comm: the job's communicator.
            named: parameters that are trained, with their names, in the order in which they are to
                be reduced. Ranks that have the same sizes under other names are found out.
            bucket_bytes: how large a bucket of several gradients may be.

        Raises:
            TypeError: gradients of one of them are not carried.
        """
        self._comm = comm
        self._is_on = True  # for forward passes from here on, else their gradients add up here
        self._is_active = False  # in a backward pass that averages
        self._is_adding = False  # in one of a forward pass for which it was off
        self._started = 0
        self._buckets: list[GradientBucket] = []
        self._parameters = frozenset(parameter for _, parameter in named)
        places = []
        for numbers in cut([parameter for _, parameter in named], bucket_bytes):
            members = [named[number][1] for number in numbers]
            bucket = GradientBucket(members, [_label(*named[number]) for number in numbers])
            self._buckets.append(bucket)
            places += [(bucket, place, parameter) for place, parameter in enumerate(members)]
        self._replace_others()
        handles = []
        for bucket, place, parameter in places:
            hook = functools.partial(_pass_on, weakref.ref(self), bucket, place)
            handles.append(parameter.register_post_accumulate_grad_hook(hook))
        self._unhook = weakref.finalize(self, _remove, handles)
        self._unhook.atexit = False

    def remove(self) -> None:
        """Average nothing any more, for good; gradients add up on this rank alone."""
        self._is_on = False
        with _lock:
            _attached.pop(self, None)
        self._unhook()

    @property
    def is_removed(self) -> bool:
        """Tell whether `remove` was called, or another reducer has one of the parameters now."""
        return not self._unhook.alive

    @property
    def is_succeeded(self) -> bool:
        """Tell whether other reducers average the gradients of all these parameters now."""
        with _lock:
            return self._parameters <= frozenset().union(*_attached.values())

    def _replace_others(self) -> None:
        with _lock:
            found = [each for each, its in _attached.items() if its & self._parameters]
            _attached[self] = self._parameters
        for other in found:
            other.remove()

    def begin_forward(self, *, averages: bool) -> None:
        """A forward pass begins, whose gradients are averaged, or add up on this rank.

        Raises:
            RuntimeError: the backward pass before it was cut short, and there are other ranks.
        """
        if self._is_active:
            self._give_up()
        self._is_on, self._is_adding = averages, False

    def watch(self, outputs: Any) -> None:
        """Begin with the backward pass from any of `outputs`, at its outermost begin.

        Whether it averages was said before the forward pass: others may come between the two.

        Otherwise a gradient begins it, which may come in a pass that a reentrant checkpoint makes,
        and each such pass would average all buckets. A parameter that is an output itself begins it
        by its gradient, and would keep the hook of each forward pass.
        """
        begin = self.begin if self._is_on else self._begin_adding
        for output in torch.utils._pytree.tree_leaves(outputs):  # noqa: SLF001 - as torch's FSDP does
            is_tensor = isinstance(output, torch.Tensor) and output.requires_grad
            if is_tensor and output not in self._parameters:
                output.register_hook(begin)

    def begin(self, *_: Any) -> None:
        """A backward pass that averages begins: called by its hooks, once or more often."""
        if not (self._is_active or self.is_removed):
            self._is_active = True
            _call_behind_pass(self._finish)

    def _begin_adding(self, *_: Any) -> None:
        """A backward pass begins that averages only if it is one of other forward passes too."""
        if not (self._is_adding or self.is_removed):
            self._is_adding = True
            _call_behind_pass(self._end_adding)

    def _end_adding(self) -> None:
        self._is_adding = False

    def on_gradient(self, bucket: GradientBucket, place: int) -> None:
        """The parameter at a place of one of the buckets has its gradient."""
        if not self._is_active:
            if self._is_adding or not self._is_on:
                return
            self.begin()  # of outputs in which `watch` finds no tensor
        self._start_full()  # of earlier gradients, whose hooks have all run
        bucket.take(place)

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
        self._started, self._is_active = 0, False

    def _give_up(self) -> None:
        """Forget a backward pass that was cut short."""
        if self._comm.world_size > 1:
            raise RuntimeError(
                "the backward pass before this forward pass was cut short, so this rank may have "
                "begun fewer collectives than others; let the error end the script"
            )
        for bucket in self._buckets:
            bucket.reset()
        self._started, self._is_active = 0, False


# Reducers whose hooks are in place, with their parameters; of all threads, as each may be a rank.
_Attached = weakref.WeakKeyDictionary[GradientReducer, frozenset[torch.nn.Parameter]]
_attached: _Attached = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _call_behind_pass(function: Callable[[], None]) -> None:
    """Call it at the end of the outermost backward pass, on the thread that called backward."""
    torch.autograd.Variable._execution_engine.queue_callback(function)  # noqa: SLF001 - as torch's FSDP does


def _pass_on(
    reducer: weakref.ref[GradientReducer], bucket: GradientBucket, place: int, _: torch.Tensor
) -> None:
    alive = reducer()
    if alive is not None:
        alive.on_gradient(bucket, place)


def _remove(handles: Iterable[Any]) -> None:
    for handle in handles:
        handle.remove()


def _label(name: str, parameter: torch.nn.Parameter) -> str:
    """The name, and how the elements lie if that is not in order."""
    return name if parameter.is_contiguous() else f"{name}{parameter.stride()}"
