"""Peers that have connected and not authenticated: bounded in number, time and log lines."""

import contextlib
from collections.abc import Iterator

import trio

from ftcomm.errors import ProtocolError
from ftcomm.protocol.handshake import HANDSHAKE_DEADLINE_S, MAX_UNAUTHENTICATED

LINES_AT_ONCE = 20  # a whole job with a wrong token is still told worker by worker
LINES_PER_S = 1.0  # a scanner tries hundreds of times a second, for months


class UnauthenticatedPeers:
    """The connections of one listener that are in their handshake."""

    def __init__(self) -> None:
        self._scopes: dict[int, trio.CancelScope] = {}

    @contextlib.contextmanager
    def admit(self, number: int) -> Iterator[None]:
        """Bound who has not proven itself yet and said what it wants.

        Raises:
            ProtocolError: the deadline has passed, or a newer unauthenticated peer needed the room.
        """
        if len(self._scopes) >= MAX_UNAUTHENTICATED:
            self._scopes.pop(next(iter(self._scopes))).cancel()
        with trio.move_on_after(HANDSHAKE_DEADLINE_S) as scope:
            self._scopes[number] = scope
            try:
                yield
            finally:
                self._scopes.pop(number, None)
        if scope.cancelled_caught:
            raise ProtocolError("it did not prove itself in time, or made room for a newer one")


class RateLimitedLog:
    """Lets through so many lines at once and so many a second; counts the rest."""

    def __init__(self) -> None:
        self._credit = float(LINES_AT_ONCE)
        self._asked_at = 0.0
        self._left_out = 0

    def line(self, text: str, *, now: float) -> str | None:
        """Return the line to log for `text`: None, or the text and the number of lines left out."""
        earned = max(now - self._asked_at, 0.0) * LINES_PER_S
        self._asked_at = now
        self._credit = min(self._credit + earned, float(LINES_AT_ONCE))
        if self._credit < 1:
            self._left_out += 1
            return None
        self._credit -= 1
        left_out, self._left_out = self._left_out, 0
        return f"{text} (and {left_out} more like it)" if left_out else text
