"""Tensors as numpy arrays and back, on the same memory.

A bfloat16 tensor becomes an array of the bfloat16 of the package ml_dtypes, the same 16 bits. A
reduction widens two operands to float32, combines them, and rounds once to the nearest, ties to
even: the bits of `torch.add` on the same two bfloat16. float16 likewise.
"""

import importlib
import sys
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]

_NUMPY = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.float16: "float16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
    torch.bfloat16: "uint16",
}
_PLAIN = {torch.Tensor, torch.nn.Parameter}  # of which no instance is distributed
_TYPESTR = {dtype: np.dtype(name).str for dtype, name in _NUMPY.items()}


class _Memory:
    """A tensor's memory, as numpy asks for it; an array made from it keeps the tensor alive.

    `Tensor.numpy()` is not used: it forbids the tensor's storage to be resized, as FSDP does.
    """

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        itemsize = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": _TYPESTR[tensor.dtype],
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * itemsize for stride in tensor.stride()),
            "data": (tensor.data_ptr(), False),
        }


def as_array(tensor: torch.Tensor) -> Array:
    """An array on the memory of `tensor`: writing to one is seen in the other.

    Args:
        tensor: dense, on the CPU; whether it requires a gradient plays no part. Writing to the
            array is hidden from autograd.

    Raises:
        TypeError: ftcomm does not carry such a tensor; the message says what to pass.
    """
    check_tensor(tensor)
    if tensor.numel() == 0:  # it has no memory, and numpy would look for some
        array: Array = np.empty(tuple(tensor.shape), np.dtype(_NUMPY[tensor.dtype]))
    else:
        array = np.asarray(_Memory(tensor))
    return array.view(_bfloat16()) if tensor.dtype is torch.bfloat16 else array


def as_tensor(array: Array) -> torch.Tensor:
    """A tensor on the memory of `array`, the inverse of `as_array`.

    Raises:
        TypeError: torch has no such dtype.
        ValueError: the array is read-only.
    """
    if not array.flags.writeable:
        raise ValueError("the array is read-only, and a tensor cannot be; pass a copy of it")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def distributed_tensors() -> tuple[Any, ...]:
    """The class of distributed tensors; empty if the process has not imported it."""
    module = sys.modules.get("torch.distributed.tensor")
    return () if module is None else (module.DTensor,)


def check_tensor(tensor: torch.Tensor) -> None:
    """Refuse what has no plain memory of the host, by name.

    Raises:
        TypeError: it is on another device, of a layout or dtype that is not carried, distributed,
            or without memory.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(tensor).__name__}")
    if type(tensor) not in _PLAIN and isinstance(tensor, distributed_tensors()):
        raise TypeError("the tensor is distributed; pass .to_local() of it, which is this rank's")
    if tensor.device.type == "meta":
        raise TypeError(
            "the tensor is on meta, where it has no values; "
            "call to_empty(device='cpu') of its module, and set or load them"
        )
    if tensor.device.type != "cpu":
        raise TypeError(
            f"the tensor is on {tensor.device}, and ftcomm carries those in host memory; "
            "pass .cpu() of it, and copy the result back"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(f"the tensor is {_short(tensor.layout)}; pass .to_dense() of it")
    if tensor.dtype not in _NUMPY:
        raise TypeError(
            f"tensors of {_short(tensor.dtype)} are not carried; pass .float() or .bfloat16() of it"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError("the tensor is a lazy conjugate; pass .resolve_conj().resolve_neg() of it")
    if tensor.numel() and (why := _missing_memory(tensor)):
        raise TypeError(why)


def _missing_memory(tensor: torch.Tensor) -> str:
    """The sentence that nothing can be read or written there; empty where it can."""
    try:
        storage = tensor.untyped_storage()
        if storage.device.type != "meta" and storage.data_ptr():
            return ""
        is_freed = not storage.nbytes()
    except (NotImplementedError, RuntimeError):
        is_freed = False
    if is_freed:  # a view of it may still have an address
        return "the tensor's memory was freed, as by FSDP between uses; pass it while it has some"
    return (
        f"the tensor, of type {type(tensor).__name__}, has no memory of its own, as where "
        "torch.compile or torch.func trace a function; call ftcomm outside of it"
    )


def _short(name: object) -> str:
    return str(name).removeprefix("torch.")


def _bfloat16() -> Any:
    try:
        return importlib.import_module("ml_dtypes").bfloat16
    except ModuleNotFoundError:
        raise TypeError(
            "bfloat16 tensors need the package ml_dtypes, which ftcomm's extra `torch` installs"
        ) from None
