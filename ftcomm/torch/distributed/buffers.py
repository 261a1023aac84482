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
    """Memory for a result."""

    def __init__(self, tensor: torch.Tensor) -> None:
        check_tensor(tensor)
        dense = tensor.detach().contiguous()
        # Flat, the tensor's own memory where its elements lie in order.
        self.array = as_array(dense).reshape(-1)
        self.finish: Finish = None  # puts the result into the tensor; None where it is there
        if dense.data_ptr() != tensor.data_ptr():
            self.finish = lambda: tensor.detach().copy_(dense)


def joined_array(tensors: Sequence[torch.Tensor]) -> Array:
    """The elements of all tensors, one behind the other: a copy."""
    arrays = [flat(tensor) for tensor in tensors]
    return np.concatenate(arrays)


def rows_for(tensors: Sequence[torch.Tensor]) -> Array:
    """An array with one row for each tensor, which must be alike; raises ValueError."""
    sizes = {tensor.numel() for tensor in tensors}
    if len(sizes) != 1:
        raise ValueError(f"tensors of one size are needed, these have {sorted(sizes)} elements")
    like = as_array(tensors[0].detach())
    return np.empty((len(tensors), *sizes), like.dtype)


def spread(parts: Sequence[Array] | Array, tensors: Sequence[torch.Tensor]) -> None:
    """Put the part of each rank into its tensor; raises ValueError."""
    for rank, (part, tensor) in enumerate(zip(parts, tensors, strict=True)):
        output = Output(tensor)
        fill(output.array, part, rank)
        if output.finish is not None:
            output.finish()


def fill(array: Array, part: Array, rank: int) -> None:
    """Put `part` into a flat `array` of as many elements: numpy would repeat a single one.

    Raises:
        ValueError: it has another size; the message names the `rank` that it came from.
    """
    if part.size != array.size:
        raise ValueError(
            f"{part.size} elements came from rank {rank} for a place of {array.size}; the sizes "
            "that a rank sends must be those that the others expect of it"
        )
    array[:] = part.reshape(-1)


def check_gathered(out: torch.Tensor, x: torch.Tensor, ranks: int) -> None:
    """See that an output has room for the inputs of all ranks; raises ValueError."""
    needed = x.numel() * ranks
    if out.numel() != needed:
        raise ValueError(
            f"the output has {out.numel()} elements, and the inputs of {ranks} ranks, "
            f"{x.numel()} each, have {needed}; pass an output of {needed} elements"
        )


def check_scattered(out: torch.Tensor, x: torch.Tensor, ranks: int) -> None:
    """See that an input has a part for the output of each rank; raises ValueError."""
    needed = out.numel() * ranks
    if x.numel() != needed:
        raise ValueError(
            f"the input has {x.numel()} elements, and the outputs of {ranks} ranks, "
            f"{out.numel()} each, have {needed}; pass an input of {needed} elements"
        )


def check_listed(out: torch.Tensor, parts: Sequence[torch.Tensor], ranks: int) -> None:
    """See that a list has a tensor for each rank, of the size of the output.

    Raises:
        ValueError: it has another number of tensors, or one of them has another size.
    """
    needed, sizes = out.numel(), [part.numel() for part in parts]
    if sizes != [needed] * ranks:
        raise ValueError(
            f"a list of {ranks} tensors of {needed} elements, as the output has, is needed, and "
            f"this one has tensors of {sizes}; pass a tensor of {needed} elements for each rank"
        )


def check_exchanged(out: torch.Tensor, x: torch.Tensor, ranks: int) -> None:
    """See that an input and an output can be cut into a part for each rank; raises ValueError."""
    if x.numel() != out.numel() or x.numel() % ranks:
        raise ValueError(
            f"the input has {x.numel()} elements, the output {out.numel()}, and there are {ranks} "
            f"ranks; pass tensors of one size that is a multiple of {ranks}, or split sizes"
        )


def split_rows(array: Array, rows: int, sizes: Sequence[int], ranks: int) -> list[Array]:
    """The flat parts of a flat `array` of `rows` rows, by the numbers of their rows.

    Args:
        array: flat.
        rows: of the tensor, along its first dimension.
        sizes: of the parts; empty for parts of one size.
        ranks: how many there are.

    Raises:
        ValueError: the sizes are not one for each rank, or do not add up to all rows.
    """
    if not sizes and rows % ranks:
        raise ValueError(
            f"{rows} rows are not split evenly over {ranks} ranks; pass a split size for each rank"
        )
    sizes = list(sizes) or [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows or min(sizes) < 0:
        raise ValueError(
            f"the split sizes {sizes} do not add up to {rows} rows for {ranks} ranks; pass a size "
            "for each rank, all of which add up to the tensor's first dimension"
        )
    width = array.size // rows if rows else 0
    ends = np.cumsum([size * width for size in sizes])
    return np.split(array, ends[:-1])
