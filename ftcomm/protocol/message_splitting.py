"""Splitting: a message with many runs travels in several frames.

A frame is bounded, and so is what a peer can make this side store.  The last frame of a report, a
plan or a fetch request is the message itself, with the end of its list.  `More` frames before it
carry the rest.
"""

from dataclasses import replace
from typing import TypeVar

from ftcomm.errors import ProtocolError
from ftcomm.protocol.field_types import RUNS_OF_A_FRAME
from ftcomm.protocol.link_messages import FetchRequest
from ftcomm.protocol.messages import (
    ControlMessage,
    Frame,
    More,
    Plan,
    Report,
)

MAX_FRAMES = 8  # of one message
MAX_RUNS = MAX_FRAMES * RUNS_OF_A_FRAME

T = TypeVar("T")


def split(message: Frame) -> list[Frame]:
    """Split `message` into messages whose lists fit their frames; raises ValueError."""
    match message:
        case Report(runs=runs) | FetchRequest(runs=runs) if len(runs) > RUNS_OF_A_FRAME:
            *ahead, last = _pieces(runs)
            return [*(More(runs=piece) for piece in ahead), replace(message, runs=last)]
        case Plan(fetches=fetches) if len(fetches) > RUNS_OF_A_FRAME:
            *before, end = _pieces(fetches)
            return [*(More(fetches=piece) for piece in before), replace(message, fetches=end)]
    return [message]


def _pieces(items: tuple[T, ...]) -> list[tuple[T, ...]]:
    if len(items) > MAX_RUNS:
        raise ValueError(f"{len(items)} runs in one message, at most {MAX_RUNS}")
    starts = range(0, len(items), RUNS_OF_A_FRAME)
    return [items[start : start + RUNS_OF_A_FRAME] for start in starts]


class Joiner:
    """Puts the split messages of one stream together."""

    def __init__(self) -> None:
        self._ahead: list[More] = []

    def take(self, message: Frame) -> ControlMessage | None:
        """The whole message, once its last frame is here; None before that.

        Raises:
            ProtocolError: too many frames, or another message than the one that they begin.
        """
        if isinstance(message, More):
            if len(self._ahead) >= MAX_FRAMES - 1:
                raise ProtocolError(f"more than {MAX_FRAMES} frames for one message")
            self._ahead.append(message)
            return None
        if not self._ahead:
            return message
        ahead, self._ahead = self._ahead, []
        runs = tuple(run for more in ahead for run in more.runs)
        fetches = tuple(fetch for more in ahead for fetch in more.fetches)
        match message:
            case Report() | FetchRequest() if not fetches:
                return replace(message, runs=(*runs, *message.runs))
            case Plan() if not runs:
                return replace(message, fetches=(*fetches, *message.fetches))
        raise ProtocolError(f"{type(message).__name__} behind a list that it has not")
