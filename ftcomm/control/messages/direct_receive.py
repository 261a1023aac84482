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
        is_withdrawn: its thread was cut short; another one that reads may not know yet.
        is_over: it has its message, or that one has to be held.
    """

    __slots__ = (
        "_dtype",
        "_shape",
        "has_taken",
        "is_over",
        "is_withdrawn",
        "source",
        "tag",
        "value",
    )

    def __init__(
        self, source: int, tag: bytes, shape: tuple[int, ...] | None, dtype: AnyDtype | None
    ) -> None:
        """`shape` and `dtype` are those that the message must have; None for any."""
        self.source, self.tag = source, tag
        self._shape, self._dtype = shape, dtype
        self.value: MessageValue | None = None
        self.has_taken = self.is_withdrawn = self.is_over = False

    def fits(self, value: MessageValue) -> bool:
        """Tell whether a message of its stream is as it must be; else posting finds the words."""
        stored = value.stored
        if value.is_object:
            return False
        if self._dtype is None:
            return True
        return stored.shape == self._shape and stored.flat.dtype == self._dtype
