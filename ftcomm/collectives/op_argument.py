"""Reduction ops as users pass them: a name, a builtin that stands for one, or a function.

A name is taken in any case and in several spellings; the error of a typo says what may be meant.
Python's `sum` adds up one iterable, so it is no function of two arrays; whoever passes it means the
operation of that name.  A function of the user's own is hashed, so that ranks with different ones
notice, and tried before its first use (`function_probe`).  What can be neither hashed nor named is
refused.
"""

import difflib
import enum
import operator
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.collectives.function_hash import UnhashableFunctionError, code_hash, name_hash

OpName = Literal[
    "sum",
    "prod",
    "product",
    "min",
    "max",
    "mean",
    "avg",
    "band",
    "bor",
    "bxor",
    "land",
    "lor",
]


class Op(enum.StrEnum):
    """The reductions that have a name; each member is equal to its name."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"
    LAND = "land"
    LOR = "lor"
    AVG = MEAN
    PRODUCT = PROD


NAMES = tuple(op.value for op in Op)
_NAME_OF = {spelling.lower(): op.value for spelling, op in Op.__members__.items()}
# What other libraries and Python call them; not accepted, since there is no end to them.
_ELSEWHERE = {
    "add": "sum",
    "plus": "sum",
    "mul": "prod",
    "multiply": "prod",
    "minimum": "min",
    "maximum": "max",
    "average": "mean",
    "any": "lor",
    "or": "lor",
    "all": "land",
    "and": "land",
    "xor": "bxor",
    "bitwise_and": "band",
    "bitwise_or": "bor",
    "bitwise_xor": "bxor",
    "logical_and": "land",
    "logical_or": "lor",
}

Array = np.ndarray[Any, AnyDtype]
UserFunction = Callable[[Array, Array], Any]
AnyOp = OpName | Op | UserFunction  # what a type checker lets users pass
UncheckedOp = str | UserFunction  # what they may pass, not looked at yet

# They take one iterable: nobody can mean them as functions of two arrays.
_OF_ITERABLES: dict[Any, str] = {
    sum: "sum",
    min: "min",
    max: "max",
    any: "lor",
    all: "land",
    np.sum: "sum",
    np.prod: "prod",
    np.min: "min",
    np.max: "max",
    np.mean: "mean",
    np.any: "lor",
    np.all: "land",
}
_OF_TWO: dict[Any, str] = {
    operator.add: "sum",
    operator.mul: "prod",
    operator.and_: "band",
    operator.or_: "bor",
    operator.xor: "bxor",
    np.add: "sum",
    np.multiply: "prod",
    np.minimum: "min",
    np.maximum: "max",
    np.bitwise_and: "band",
    np.bitwise_or: "bor",
    np.bitwise_xor: "bxor",
    np.logical_and: "land",
    np.logical_or: "lor",
}
# By identity: a user's object may have no hash, or one that is equal to everything.
NAME_OF_ID = {id(function): name for function, name in (_OF_ITERABLES | _OF_TWO).items()}
_IDS_OF_ITERABLES = frozenset(map(id, _OF_ITERABLES))
MAX_NAME = 200  # characters: a name is for a person to read


@dataclass(frozen=True, slots=True)
class Reduction:
    """A user's reduction function and what it needs; made by `reduction`.

    Attributes:
        function: of (accumulator, operand), or of (source, destination).
        elementwise: False if it must see whole arrays.
        commutative: False if the accumulator must come from lower ranks.
        name: what stands for it in place of its code; empty for none.
        is_declared: by `reduction`, so it is not tried.
        in_place: it combines the source into the destination.
        itemsize: bytes of its elements where those are no dtype's, else 0.
    """

    function: UserFunction
    elementwise: bool = True
    commutative: bool = True
    name: str = ""
    is_declared: bool = True
    in_place: bool = False
    itemsize: int = 0

    def __call__(self, first: Array, second: Array) -> Any:
        """Return what the function itself returns."""
        return self.function(first, second)

    @property
    def is_named(self) -> bool:
        """True if ranks compare a name: the same one in every version of Python."""
        return bool(self.name) or isinstance(self.function, np.ufunc)

    @property
    def whole(self) -> bool:
        """True if the function must be given whole arrays, in rank order."""
        return not (self.elementwise and self.commutative) or self.itemsize > 1


def reduction(
    function: UserFunction,
    *,
    elementwise: bool = True,
    commutative: bool = True,
    name: str | None = None,
    in_place: bool = False,
    itemsize: int | None = None,
) -> Reduction:
    """Declare a function as an ``op``: what it needs, and what it is called.

    A function that is passed without this must show on two small arrays that it is elementwise and
    commutative.  A declared one is taken at its word.

    Args:
        function: of (accumulator, operand), which returns their combination as an array of the
            same shape and dtype and changes neither; the same on all ranks; associative.  With
            `in_place` of (source, destination).
        elementwise: False if it must see whole arrays of the shape that was passed in.
        commutative: False if the accumulator must come from lower ranks than the operand.
        name: what ranks compare in place of the function's code. A builtin or C function needs
            one, such as ``"torch.add"``. All ranks must mean the same by it.
        in_place: the function combines its first array, the operand, into its second, the
            accumulator, which it may write while it runs and may not keep. It returns None, or
            that array.
        itemsize: bytes of one element where that is no dtype, as of a C struct. Arrays are then
            uint8, of whole elements, and the function is given whole arrays in rank order.

    Raises:
        TypeError: `function` is no function of two arrays, or has neither code nor a name.
        ValueError: `name` is empty or too long, or `itemsize` is not positive.
    """
    if not callable(function):
        raise TypeError(f"a reduction is made of a function, not of a {type(function).__name__}")
    if id(function) in _IDS_OF_ITERABLES:
        raise TypeError(
            f"{described(function)} combines the elements of one array, and a reduction two "
            f"arrays; pass op={NAME_OF_ID[id(function)]!r}"
        )
    if name is None:
        _check_code(function)
    elif not isinstance(name, str):
        raise TypeError(f"name is a {type(name).__name__}, must be a str")
    elif not 0 < len(name) <= MAX_NAME:
        raise ValueError(f"name has {len(name)} characters, must have 1 to {MAX_NAME}")
    return Reduction(
        function,
        elementwise,
        commutative,
        name or "",
        in_place=bool(in_place),
        itemsize=0 if itemsize is None else _checked_itemsize(itemsize),
    )


def _checked_itemsize(itemsize: Any) -> int:
    if type(itemsize) is not int:
        raise TypeError(f"itemsize is a {type(itemsize).__name__}, must be an int")
    if itemsize < 1:
        raise ValueError(f"itemsize is {itemsize}, must be at least 1")
    return itemsize


def resolve_op(op: UncheckedOp) -> str | Reduction:
    """Resolve an ``op`` to the name of an operation, or to a function that can be hashed.

    Raises:
        TypeError: `op` is neither name nor function, or a function without code or name.
        ValueError: no operation has this name.
    """
    if isinstance(op, str):
        return canonical_name(op)
    name = NAME_OF_ID.get(id(op))
    if name is not None:
        return name
    if isinstance(op, Reduction):
        return op
    if not callable(op):
        raise TypeError(f"op is a name, an ftcomm.Op or a function, not {type(op).__name__}")
    _check_code(op)
    return Reduction(op, is_declared=False)


def canonical_name(spelling: str) -> str:
    """The name of the operation that is spelled so, in any case.

    Raises:
        ValueError: none is; the message says which one may be meant.
    """
    name = _NAME_OF.get(spelling) or _NAME_OF.get(spelling.lower())
    if name is not None:
        return name
    hint = _hint(spelling.lower())
    raise ValueError(
        f"no operation is called {spelling!r}; {hint}use one of {', '.join(_NAME_OF)}, "
        "or pass a function"
    )


def _hint(spelling: str) -> str:
    close = difflib.get_close_matches(spelling, [*_NAME_OF, *_ELSEWHERE], n=1)
    if not close:
        return ""
    return f"did you mean {_ELSEWHERE.get(close[0], close[0])!r}? "


def needs_whole(op: UncheckedOp) -> bool:
    """True if the operation must be given whole arrays, in rank order."""
    return isinstance(op, Reduction) and op.whole


def check_itemsize(reduction: Reduction, x: Array, what: str = "the input") -> None:
    """Refuse an array that does not consist of a function's whole elements.

    Raises:
        ValueError: its bytes are no multiple of the size of one.
    """
    if reduction.itemsize and x.nbytes % reduction.itemsize:
        raise ValueError(
            f"op {described(reduction.function)} combines elements of {reduction.itemsize} bytes, "
            f"and {what} has {x.nbytes} bytes, which is no multiple of it"
        )


def function_hash(reduction: Reduction) -> int:
    """The hash of a user's function, and of what it needs.

    Raises:
        TypeError: it has no name, and refers to something that has no digest.
    """
    needs = f"{reduction.elementwise} {reduction.commutative}" if reduction.whole else ""
    if reduction.in_place or reduction.itemsize:
        needs += f" {reduction.in_place} {reduction.itemsize}"
    if reduction.name:
        return name_hash(reduction.name, needs)
    if isinstance(reduction.function, np.ufunc):
        return name_hash(f"numpy.{reduction.function.__name__}", needs)
    try:
        return code_hash(reduction.function, needs)
    except UnhashableFunctionError as error:
        name = described(reduction.function)
        raise TypeError(
            f"op {name} cannot be compared between ranks: {error}, which cannot be hashed; "
            f"{_remedy(name)}"
        ) from None


def check_pythons(reduction: Reduction, pythons: Sequence[str]) -> None:
    """Refuse a function without a name where ranks run different versions of Python.

    Args:
        reduction: whose hash is of its bytecode.
        pythons: of each rank, empty where it is not known.

    Raises:
        TypeError: naming the versions and their ranks.
    """
    ranks: dict[str, list[int]] = {}
    for rank, python in enumerate(pythons):
        if python:
            ranks.setdefault(python, []).append(rank)
    if len(ranks) < 2:
        return
    versions = ", ".join(
        f"{python} on rank {members[0]}" + (f" and {len(members) - 1} more" * (len(members) > 1))
        for python, members in sorted(ranks.items())
    )
    name = described(reduction.function)
    raise TypeError(
        f"op {name} cannot be compared between ranks: they run {versions}, and each version has "
        f"its own bytecode; {_remedy(name)}"
    )


def _remedy(name: str) -> str:
    plain = name if name.isascii() and "<" not in name and " " not in name else "mine"
    return f"give it a name: ftcomm.reduction(f, name={plain!r})"


def described(function: Any) -> str:
    """A function as messages call it."""
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        return f"an object of type {type(function).__name__}"
    module = getattr(function, "__module__", None)
    return name if module in (None, "builtins", "__main__") else f"{module}.{name}"


def _check_code(function: Any) -> None:
    """Refuse what is no Python function: nothing tells whether ranks mean the same by it."""
    if isinstance(function, np.ufunc):
        _check_ufunc(function)
        return
    while isinstance(function, partial | types.MethodType):
        function = function.func if isinstance(function, partial) else function.__func__
    if not isinstance(function, types.FunctionType):
        raise _without_code(function, "has no Python code of its own that ranks could compare")


def _check_ufunc(function: np.ufunc) -> None:
    if getattr(np, function.__name__, None) is not function:
        raise _without_code(function, "is no ufunc of numpy's own, so its name says too little")
    if function.nin != 2 or function.nout != 1:
        raise TypeError(
            f"op is {described(function)}, which takes {function.nin} arrays and gives "
            f"{function.nout}; an op takes 2 and gives 1"
        )


def _without_code(function: Any, why: str) -> TypeError:
    name = described(function)
    return TypeError(
        f"op is {name}, which {why}; use a name ({', '.join(NAMES)}), a Python function, or "
        f"ftcomm.reduction(f, name={name!r}) if it combines two arrays into a new one of the "
        "same dtype and shape"
    )
