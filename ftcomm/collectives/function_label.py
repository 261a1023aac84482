"""Labels of reduction functions: the words that name one in the message of a mismatch.

The label travels behind the call site, never in the signature: ranks compare the hash alone.
"""

import functools
import types
from typing import Any

from ftcomm.collectives.op_argument import Reduction

# Bytes of a name and of a file's name in a label. Together with a call site of usual length they
# fit into the 255 bytes that a worker tells of a recent call's site.
MAX_NAME_BYTES = 80
MAX_FILE_BYTES = 60
_CUT = "..."


def function_label(reduction: Reduction) -> str:
    """The declared name, or the qualified name with file and line of the definition."""
    if reduction.name:
        return _printable(reduction.name, MAX_NAME_BYTES)
    function: Any = reduction.function
    while isinstance(function, functools.partial | types.MethodType):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", "")
    label = _printable(str(name), MAX_NAME_BYTES)
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):  # a ufunc of numpy's
        return f"numpy.{label}"
    file = _printable(code.co_filename.replace("\\", "/").rpartition("/")[2], MAX_FILE_BYTES)
    return f"{label} at {file}:{code.co_firstlineno}"


def _printable(text: str, limit: int) -> str:
    """`text` as printable ASCII of at most `limit` bytes; a long one loses its left end."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return plain if len(plain) <= limit else _CUT + plain[len(_CUT) - limit :]
