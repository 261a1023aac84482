"""The content of one message from rank to rank, as sender's log and receiver's inbox keep it."""

from typing import NamedTuple

import numpy as np
import xxhash

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.link_messages import Content


class MessageValue(NamedTuple):
    """Elements or a packed object, and what it was to the user who sent it."""

    stored: LoggedResult
    content: Content

    @property
    def dtype(self) -> AnyDtype:
        """Of the elements; bytes of an object."""
        return self.stored.flat.dtype

    @property
    def is_object(self) -> bool:
        """A packed object, and no array."""
        return self.content is Content.OBJECT

    @property
    def text(self) -> str:
        """For messages: what was sent."""
        if self.is_object:
            return "an object"
        return f"{self.dtype.name}{list(self.stored.shape)}"


def digest_of(flat: Array, shape: tuple[int, ...], content: Content) -> bytes:
    """16 bytes that stand for a message: the elements, and what they are."""
    digest = xxhash.xxh3_128(flat.view(np.uint8).data)
    digest.update(f"{content:d} {flat.dtype.name} {shape}".encode())
    return digest.digest()
