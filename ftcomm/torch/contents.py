"""The content of a state dict as a checkpoint holds it, and back.

`ftcomm.register` lets states and objects hold tensors.  What is left to do here: take the shards of
distributed tensors out, as they differ between ranks, and keep the types that schedulers use and
the order in which elements lie.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import ftcomm
from ftcomm.torch.tensors import Array, as_array, as_tensor, check_tensor, distributed_tensors


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """In place of a distributed tensor: its shard is in the local state."""

    number: int  # of the shard, in the order of the state dict


@dataclass(frozen=True, slots=True)
class CounterItems:
    """A `collections.Counter`, which `MultiStepLR` keeps its milestones in."""

    items: dict[Any, int]


@dataclass(frozen=True, slots=True)
class OrderedTensor:
    """A tensor whose elements lie in another order than that of its indices, as channels_last.

    An optimizer works on its state and the parameter side by side.  Laid out in another way the
    state would give other bits, and in a fused kernel that of other elements.
    """

    order: tuple[int, ...]  # of the dimensions, from the outermost in memory to the innermost
    content: torch.Tensor  # the tensor with its dimensions in that order


def register_types() -> None:
    """Let states and objects hold tensors, and what is made here."""
    ftcomm.register(torch.Tensor, _array_of, _tensor_of)
    ftcomm.register(ShardPlace, lambda place: place.number, ShardPlace)
    ftcomm.register(CounterItems, lambda counter: counter.items, CounterItems)
    ftcomm.register(
        OrderedTensor, lambda each: (each.order, each.content), lambda parts: OrderedTensor(*parts)
    )


def _array_of(tensor: torch.Tensor) -> Array:
    check_tensor(tensor)
    return as_array(tensor.detach().contiguous())


def _tensor_of(array: Array) -> torch.Tensor:
    """The tensor; on a copy of a read-only array, as where two states are compared."""
    return as_tensor(array if array.flags.writeable else array.copy())


def to_content(tree: Any, shards: list[torch.Tensor]) -> Any:
    """`tree` as a state may hold it.

    Args:
        tree: as a ``state_dict()`` returned it.
        shards: this rank's parts of the distributed tensors in it are added.
    """
    sharded = distributed_tensors()

    def leaf(value: Any) -> Any:
        if isinstance(value, sharded):
            shards.append(value.to_local())
            return ShardPlace(len(shards) - 1)
        if isinstance(value, torch.Tensor):
            return _in_order(value.detach())
        return CounterItems(dict(value)) if type(value) is Counter else value

    return map_leaves(tree, leaf)


def to_tree(content: Any, shards: list[torch.Tensor]) -> Any:
    """The inverse of `to_content`; a distributed tensor is its shard alone."""

    def leaf(value: Any) -> Any:
        if isinstance(value, ShardPlace):
            return shards[value.number]
        if isinstance(value, OrderedTensor):
            return value.content.permute(np.argsort(value.order).tolist())
        return Counter(value.items) if isinstance(value, CounterItems) else value

    return map_leaves(content, leaf)


def _in_order(tensor: torch.Tensor) -> torch.Tensor | OrderedTensor:
    """`tensor`, or how it lies in memory; one with gaps comes back without them."""
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return tensor
    order = tuple(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    content = tensor.permute(order)
    return OrderedTensor(order, content) if content.is_contiguous() else tensor


def map_leaves(tree: Any, function: Callable[[Any], Any]) -> Any:
    """A copy of the containers in `tree`, with `function` of everything else.

    Parts of `tree` that are one object are one in the copy.
    """
    known: dict[int, Any] = {}

    def copied(value: Any) -> Any:
        if id(value) in known:
            return known[id(value)]
        kind = type(value)
        if kind is tuple:
            return tuple(copied(item) for item in value)
        if kind is list:  # known before its items are: it may hold itself, which is refused later
            items: list[Any] = known.setdefault(id(value), [])
            items.extend(copied(item) for item in value)
            return items
        if kind is dict or kind is OrderedDict:
            named = known.setdefault(id(value), kind())
            named.update((key, copied(item)) for key, item in value.items())
            return named
        made = function(value)
        if made is not value:
            known[id(value)] = made
        return made

    return copied(tree)
