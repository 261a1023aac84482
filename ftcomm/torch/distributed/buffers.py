"""Tensors of a call as flat arrays, and back where they do not share memory."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ftcomm.torch.tensors import Array, as_array, check_tensor

Finish = Callable[[], object] | None


def flat(tensor: torch.Tensor) -> Array:
    """The elements, in order; a copy where they do not lie so."""
    check_tensor(tensor)
    return as_array(tensor.detach().contiguous()).reshape(-1)


class Output:
    """Memory for a result.

    Attributes:
        array: flat, the tensor's own memory where its elements lie in order.
        finish: puts the result into the tensor; None where it is there.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        check_tensor(tensor)
        dense = tensor.detach().contiguous()
        self.array = as_array(dense).reshape(-1)
        self.finish: Finish = None
        if dense.data_ptr() != tensor.data_ptr():
            self.finish = lambda: tensor.detach().copy_(dense)


def joined_array(tensors: Sequence[torch.Tensor]) -> Array:
    """The elements of all tensors, one behind the other: a copy."""
    arrays = [flat(tensor) for tensor in tensors]
    return np.concatenate(arrays)


def rows_for(tensors: Sequence[torch.Tensor]) -> Array:
    """An array with one row for each tensor, which must be alike.

    Raises:
        ValueError: they have different sizes.
    """
    sizes = {tensor.numel() for tensor in tensors}
    if len(sizes) != 1:
        raise ValueError(f"tensors of one size are needed, these have {sorted(sizes)} elements")
    like = as_array(tensors[0].detach())
    return np.empty((len(tensors), *sizes), like.dtype)


def spread(parts: Sequence[Array] | Array, tensors: Sequence[torch.Tensor]) -> None:
    """Put each part into its tensor.

    Raises:
        ValueError: a part has another size than its tensor.
    """
    for part, tensor in zip(parts, tensors, strict=True):
        output = Output(tensor)
        fill(output.array, part)
        if output.finish is not None:
            output.finish()


def fill(array: Array, part: Array) -> None:
    """Put `part` into a flat `array` of as many elements: numpy would repeat a single one.

    Raises:
        ValueError: it has another size.
    """
    if part.size != array.size:
        raise ValueError(f"{part.size} elements came for a tensor of {array.size}")
    array[:] = part.reshape(-1)


def split_rows(array: Array, rows: int, sizes: Sequence[int]) -> list[Array]:
    """The flat parts of a flat `array` of `rows` rows, by the numbers of their rows.

    Raises:
        ValueError: these do not add up to all rows.
    """
    if sum(sizes) != rows or min(sizes, default=0) < 0:
        raise ValueError(f"the split sizes {list(sizes)} do not add up to {rows} rows")
    width = array.size // rows if rows else 0
    ends = np.cumsum([size * width for size in sizes])
    return np.split(array, ends[:-1])
