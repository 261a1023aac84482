"""Reduction ops as users pass them: a name, a builtin that stands for one, or a declared function.

A name is taken in any case and in several spellings; the error of a typo says what may be meant.
Python's `sum` adds up one iterable, so it is no function of two arrays; who passes it means the
operation of that name.  A function of the user's own is declared by `reduction` with a name, which
ranks compare; the error of an undeclared one has the line that declares it.
"""

import difflib
import enum
import hashlib
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.config.plurals import kind_of

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
HASH_BYTES = 8  # what a signature has room for

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
# Characters of a name. With a call site of usual length it fits into the 255 bytes that a worker
# tells of a recent call's site.
MAX_NAME = 80


@dataclass(frozen=True, slots=True)
class Reduction:
    """A user's reduction function and what it needs; made by `reduction`."""

    function: UserFunction  # of (accumulator, operand), or of (source, destination)
    name: str  # what ranks compare
    elementwise: bool = True  # False if it must see whole arrays
    commutative: bool = True  # False if the accumulator must come from lower ranks
    in_place: bool = False  # it combines the source into the destination
    itemsize: int = 0  # bytes of its elements where those are no dtype's, else 0

    def __call__(self, first: Array, second: Array) -> Any:
        """Return what the function itself returns."""
        return self.function(first, second)

    @property
    def whole(self) -> bool:
        """True if the function must be given whole arrays, in rank order."""
        return not (self.elementwise and self.commutative) or self.itemsize > 1

    @property
    def hash(self) -> int:
        """Hash of the name and of the needs of the function, for the signature."""
        needs = (self.name, self.elementwise, self.commutative, self.in_place, self.itemsize)
        raw = hashlib.sha256(ascii(needs).encode()).digest()
        return int.from_bytes(raw[:HASH_BYTES], "little")

    @property
    def label(self) -> str:
        """The name as printable ASCII, for the message of a mismatch.

        It travels behind the call site, never in the signature: ranks compare the hash alone.
        """
        return "".join(c if c.isascii() and c.isprintable() else "?" for c in self.name)


def reduction(
    function: UserFunction,
    *,
    name: str,
    elementwise: bool = True,
    commutative: bool = True,
    in_place: bool = False,
    itemsize: int | None = None,
) -> Reduction:
    """Declare a function as an ``op``: what it is called, and what it needs.

    The declaration is taken at its word: an elementwise and commutative function gets pieces of
    arrays in any order.

    Args:
        function: of (accumulator, operand), which returns their combination as an array of the
            same shape and dtype and changes neither; the same on all ranks; associative.  With
            `in_place` of (source, destination).
        name: what ranks compare, such as ``"torch.add"``. All ranks must mean the same by it.
        elementwise: False if it must see whole arrays of the shape that was passed in.
        commutative: False if the accumulator must come from lower ranks than the operand.
        in_place: the function combines its first array, the operand, into its second, the
            accumulator, which it may write while it runs and may not keep. It returns None, or
            that array.
        itemsize: bytes of one element where that is no dtype, as of a C struct. Arrays are then
            uint8, of whole elements, and the function is given whole arrays in rank order.

    Raises:
        TypeError: `function` is no function of two arrays, or `name` no text.
        ValueError: `name` is empty or too long, or `itemsize` is not positive.
    """
    if not callable(function):
        raise TypeError(f"a reduction is made of a function, not of {kind_of(function)}")
    if id(function) in _IDS_OF_ITERABLES:
        raise TypeError(
            f"{described(function)} combines the elements of one array, and a reduction two "
            f"arrays; pass op={NAME_OF_ID[id(function)]!r}"
        )
    if not isinstance(name, str):
        raise TypeError(f"name is {kind_of(name)}, must be a str")
    if not 0 < len(name) <= MAX_NAME:
        raise ValueError(f"name has {len(name)} characters, must have 1 to {MAX_NAME}")
    return Reduction(
        function,
        name,
        bool(elementwise),
        bool(commutative),
        bool(in_place),
        0 if itemsize is None else _checked_itemsize(itemsize),
    )


def _checked_itemsize(itemsize: Any) -> int:
    if type(itemsize) is not int:
        raise TypeError(f"itemsize is {kind_of(itemsize)}, must be an int")
    if itemsize < 1:
        raise ValueError(f"itemsize is {itemsize}, must be at least 1")
    return itemsize


def resolve_op(op: UncheckedOp) -> str | Reduction:
    """Resolve an ``op`` to the name of an operation, or to a declared function.

    Raises:
        TypeError: `op` is neither name nor declared function.
        ValueError: no operation has this name.
    """
    if isinstance(op, str):
        return canonical_name(op)
    if isinstance(op, Reduction):
        return op
    name = NAME_OF_ID.get(id(op))
    if name is not None:
        return name
    if not callable(op):
        raise TypeError(
            f"op is a name, an ftcomm.Op or an ftcomm.reduction, not {type(op).__name__}"
        )
    raise _undeclared(op)


def _undeclared(function: Any) -> TypeError:
    plain = getattr(function, "__name__", "")
    variable = plain if isinstance(plain, str) and plain.isidentifier() else "f"
    name = described(function)
    usable = variable != "f" and 0 < len(name) <= MAX_NAME
    # No name that could be pasted: two functions that are called alike would be taken for one.
    given = repr(name) if usable else "..."
    choose = "" if usable else ", with a name of your own for the ..."
    return TypeError(
        f"op is {described(function)}, which is not declared as a reduction; use one of "
        f"{', '.join(NAMES)}, or give it a name that ranks can compare, elementwise=False if it "
        f"needs whole arrays, and commutative=False if the order of ranks is meant{choose}:\n"
        f"    op = ftcomm.reduction({variable}, name={given})"
    )


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
        "or an ftcomm.reduction"
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
    """Refuse an array that does not consist of a function's whole elements; raises ValueError."""
    if reduction.itemsize and x.nbytes % reduction.itemsize:
        raise ValueError(
            f"op {described(reduction.function)} combines elements of {reduction.itemsize} bytes, "
            f"and {what} has {x.nbytes} bytes, which is no multiple of it"
        )


def described(function: Any) -> str:
    """A function as messages call it."""
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        return f"an object of type {type(function).__name__}"
    module = getattr(function, "__module__", None)
    return name if module in (None, "builtins", "__main__") else f"{module}.{name}"
