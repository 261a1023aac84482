"""Names of reduction ops: those of ftcomm, what else they are called, and hints for typos."""

import difflib
import enum
from typing import Literal

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
