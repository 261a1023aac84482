"""Classes of values, such as messages and events, for modules that have many of them.

A process makes two hundred of them before it does anything.  For a frozen class `dataclasses`
compiles six functions from text, up to Python 3.12 in half a millisecond.  Here that is `__init__`
alone, and all classes share the others.  To a type checker they are frozen; nothing else is in the
way of who assigns.
"""

from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses

    def dataclass(*, frozen: bool, slots: bool) -> Any:
        """As that of `dataclasses`, for a class whose fields have no options but a default."""
        assert frozen, "others gain nothing here"

        def made(cls: type) -> type:
            new = dataclasses.dataclass(cls, slots=slots, eq=False, repr=False)
            new.__eq__, new.__hash__, new.__repr__ = _eq, _hash, _repr
            return new

        return made

    def _contents(value: Any) -> tuple[Any, ...]:
        return tuple([getattr(value, name) for name in value.__match_args__])

    def _eq(self: Any, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return _contents(self) == _contents(other)

    def _hash(self: Any) -> int:
        return hash(_contents(self))

    def _repr(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"{self.__class__.__qualname__}({shown})"
