"""The sockets that a hub keeps from forked children, for drivers that have no hub."""

import contextlib
from collections.abc import Iterator
from typing import Any


class KeptSockets:
    """Takes the place of `Hub.kept_from_children`.

    Attributes:
        now: the sockets that are kept at present.
    """

    def __init__(self) -> None:
        self.now: list[Any] = []

    @contextlib.contextmanager
    def __call__(self, sock: Any) -> Iterator[None]:
        """Keep `sock` while inside."""
        self.now.append(sock)
        try:
            yield
        finally:
            self.now.remove(sock)
