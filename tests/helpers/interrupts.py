"""Interrupts: Ctrl-C at every place of a call, one after the other, in a fixed order.

Two kinds of places.  `ANYWHERE` is before each opcode, more than the interpreter can do.
`BY_SIGNAL` is where it looks for signals: when a function begins, at a jump back, and when a call
of something that is not written in Python has returned, or of other modules, which stands for the
places in them.  What lies between two of those cannot be interrupted.
"""

import opcode
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, NoReturn

ANYWHERE, BY_SIGNAL = "anywhere", "by signal"
_LOOKS = {"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}


def _raise() -> NoReturn:
    raise KeyboardInterrupt


class _Interrupt:
    """Acts at the place of a number, of those that code of some files has."""

    def __init__(
        self, number: int, files: set[str | None], where: str, act: Callable[[], object]
    ) -> None:
        self._left, self._files, self._where, self._act = number, files, where, act
        self._last: dict[FrameType, str] = {}  # what each frame has run
        self.has_come = False

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if self.has_come or frame.f_code.co_filename not in self._files:
            return None
        if event == "call" and frame.f_back is not None:
            self._last[frame.f_back] = ""  # from there it returns without a look
        frame.f_trace_opcodes = True
        if event == "opcode" and self._is_place(frame):
            if not self._left:
                self.has_come = True
                self._last.clear()
                self._act()
            self._left -= 1
        return self.trace

    def _is_place(self, frame: FrameType) -> bool:
        last = self._last.get(frame, "RESUME")  # for which some interpreters trace nothing
        self._last[frame] = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
        return self._where == ANYWHERE or last in _LOOKS


def interrupted(
    call: Callable[[], object],
    number: int,
    *modules: ModuleType,
    where: str = ANYWHERE,
    act: Callable[[], object] = _raise,
) -> bool:
    """Make `call`, with Ctrl-C at one place of `modules`; False if it has fewer places.

    Args:
        call: what is interrupted.
        number: of the place.
        modules: whose code counts.
        where: which places count.
        act: what happens there, instead of a KeyboardInterrupt that nobody heeds.
    """
    interrupt = _Interrupt(number, {module.__file__ for module in modules}, where, act)
    before = sys.gettrace()
    sys.settrace(interrupt.trace)
    try:
        call()
    except KeyboardInterrupt:
        assert interrupt.has_come
    finally:
        sys.settrace(before)
    return interrupt.has_come


def places(most: int = 10_000) -> Iterator[int]:
    """Numbers of places, for a loop that ends when the call has ended before one."""
    yield from range(most)
    raise AssertionError(f"a call of more than {most} places")
