"""The content of one message from rank to rank, as sender's log and receiver's inbox keep it."""

import functools
from dataclasses import dataclass

import numpy as np
import xxhash

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.link_messages import Content

ENTRY_BYTES = 256  # a log or an inbox counts so much more for each: small ones have a limit too
ONE_PIECE_BYTES = 1 << 12  # up to here one call over elements and text takes less than three


@dataclass(slots=True)  # a frozen one, or a named tuple, takes twice as long to make
class MessageValue:
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


def digest_of(flat: Array, text: bytes) -> bytes:
    """16 bytes that stand for a message: the elements, and by `text_of` what they are."""
    if flat.nbytes <= ONE_PIECE_BYTES:
        return xxhash.xxh3_128_digest(flat.tobytes() + text)
    digest = xxhash.xxh3_128(flat.view(np.uint8).data)
    digest.update(text)
    return digest.digest()


@functools.lru_cache(maxsize=256)
def text_of(content: Content, dtype: AnyDtype, shape: tuple[int, ...]) -> bytes:
    """Describe the elements of a message, for its digest."""
    return f"{content:d} {dtype.name} {shape}".encode()
