"""Interrupts: Ctrl-C at every place of a call, one after the other, without any luck.

A real one lands where the interpreter looks for signals: after a call, at the start of a function,
at a jump back.  Here it lands before any one opcode, which is all of these places and more.
"""

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any


class _Interrupt:
    """Raises KeyboardInterrupt before the opcode of a number, of those that chosen code runs."""

    def __init__(self, number: int, chosen: Callable[[CodeType], bool]) -> None:
        self._left = number
        self._chosen = chosen
        self.has_come = False

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if self.has_come or not self._chosen(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if not self._left:
                self.has_come = True
                raise KeyboardInterrupt
            self._left -= 1
        return self.trace


def interrupted(call: Callable[[], object], number: int, *modules: ModuleType) -> bool:
    """Make `call`, with an interrupt before an opcode of `modules`; False if it ended before."""
    files = {module.__file__ for module in modules}
    interrupt = _Interrupt(number, lambda code: code.co_filename in files)
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
    """Numbers of opcodes, for a loop that ends when the call has ended before one."""
    yield from range(most)
    raise AssertionError(f"a call of more than {most} opcodes")
