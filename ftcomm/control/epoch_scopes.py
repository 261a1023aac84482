"""EpochScopes: tasks of the control thread that do not outlive the epoch's links."""

import contextlib
from collections.abc import Iterator

import trio


class EpochScopes:
    """Cancel scopes of dials, fetches and serving. For the control thread alone."""

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()

    def __len__(self) -> int:
        return len(self._scopes)

    @contextlib.contextmanager
    def opened(self) -> Iterator[trio.CancelScope]:
        """Run the body until the epoch's links are closed, or it has ended by itself."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)

    def cancel(self) -> None:
        """End all that runs now."""
        for scope in list(self._scopes):
            scope.cancel()
