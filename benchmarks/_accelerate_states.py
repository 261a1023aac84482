"""States of which accelerate keeps one in a process."""

from collections.abc import Callable

from accelerate.state import AcceleratorState, GradientState, PartialState

KINDS = (PartialState, AcceleratorState, GradientState)


def own_states() -> Callable[[], None]:
    """Make states for one side, and return what puts them in place."""
    states = [(kind, dict[str, object]()) for kind in KINDS]

    def enter() -> None:
        for kind, state in states:
            kind._shared_state = state  # noqa: SLF001 - nothing else lets two sides share a process

    return enter
