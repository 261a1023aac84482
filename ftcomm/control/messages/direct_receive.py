"""DirectReceive: a receive of a thread that reads the link itself, and is not posted.

Most receives find that no other thread reads the link, and that their message is what comes next on
it.  Then it goes from the link to the user: it does not wait in the inbox, and nobody is woken.
Where anything is different, the receive is posted like any other, and loses a few microseconds.
"""

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.memory.message_value import MessageValue


class DirectReceive:
    """One receive of an array or a number.

    Attributes:
        source: the rank that sends.
        tag: as it travels.
        value: the message, once it is here.
        has_taken: the message is taken, or is just being taken: it does not come again.
    """

    __slots__ = ("_dtype", "_shape", "has_taken", "source", "tag", "value")

    def __init__(
        self, source: int, tag: bytes, shape: tuple[int, ...] | None, dtype: AnyDtype | None
    ) -> None:
        """`shape` and `dtype` are those that the message must have; None for any."""
        self.source, self.tag = source, tag
        self._shape, self._dtype = shape, dtype
        self.value: MessageValue | None = None
        self.has_taken = False

    def fits(self, source: int, tag: bytes, value: MessageValue) -> bool:
        """Tell whether this is its message; where it is a wrong one, posting finds the words."""
        if source != self.source or tag != self.tag or value.is_object:
            return False
        stored = value.stored
        if self._dtype is None:
            return True
        return stored.shape == self._shape and stored.flat.dtype == self._dtype
