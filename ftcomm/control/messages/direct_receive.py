"""DirectReceive: a receive of a thread that reads the link itself, and is not posted.

Most receives find that no other thread reads the link, and that their message is what comes next on
it.  Then it goes from the link to the user: it does not wait in the inbox, and nobody is woken.
Where anything is different, the receive is posted like any other, and loses a few microseconds.

A large message is received in the user's own array at once.  Whether it may be taken, as nearly
always, is known only when it is whole: one that may not is copied before it is held.
"""

from dataclasses import replace

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.errors import ProtocolError
from ftcomm.memory.message_value import MessageValue
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.link_messages import Content
from ftcomm.protocol.message_head import HeadFields


def bytes_in(out: Array) -> Array:
    """The bytes of a contiguous array, of whatever class; those of a matrix are one row else."""
    return np.asarray(out).reshape(-1).view(np.uint8)


class DirectReceive:
    """One receive of an array or a number.

    Attributes:
        source: the rank that sends.
        tag: as it travels.
        has_taken: the message is taken, or is just being taken: it does not come again.
        is_over: it has its message, or that one has to be held.
        is_filling: a message comes, or has come, into the user's array.
    """

    __slots__ = (
        "_dtype",
        "_out",
        "_shape",
        "has_taken",
        "is_filling",
        "is_over",
        "source",
        "tag",
        "value",
    )

    def __init__(
        self,
        source: int,
        tag: bytes,
        shape: tuple[int, ...] | None,
        dtype: AnyDtype | None,
        out: Array | None = None,
    ) -> None:
        """`shape` and `dtype` are those that the message must have; None for any.

        `out` is where it may be received: contiguous, in native order, and the user's.
        """
        self.source, self.tag = source, tag
        self._shape, self._dtype, self._out = shape, dtype, out
        self.value: MessageValue | None = None  # the message, once it is here
        self.has_taken = self.is_over = self.is_filling = False

    def place_for(self, source: int, fields: HeadFields, dtype: AnyDtype) -> Array | None:
        """The user's own memory for a message of which the head has come; None for any other.

        It is given once.  From then on the thread may not leave while the link works.
        """
        out = self._out
        if out is None or self.is_over or self.is_filling:
            return None
        if (source, fields.tag) != (self.source, self.tag) or fields.content == Content.OBJECT:
            return None
        if fields.shape != out.shape or dtype != out.dtype or not out.flags.writeable:
            return None
        self.is_filling = True
        return bytes_in(out)

    def own(self, value: MessageValue) -> MessageValue:
        """A message that has to be held, copied if it is in the user's memory.

        Raises:
            ProtocolError: there is no room.
        """
        stored = value.stored
        if self._out is None or not np.may_share_memory(self._out, stored.flat):
            return value
        try:
            return replace(value, stored=LoggedResult(stored.flat.copy(), stored.shape))
        except MemoryError as error:
            raise ProtocolError(f"no room for {stored.flat.nbytes} bytes: {error}") from None

    def fits(self, value: MessageValue) -> bool:
        """Tell whether a message of its stream is as it must be; else posting finds the words."""
        stored = value.stored
        if value.is_object:
            return False
        if self._dtype is None:
            return True
        return stored.shape == self._shape and stored.flat.dtype == self._dtype
