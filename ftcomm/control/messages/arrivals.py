"""Arrivals: the messages of one link, from their heads to the machine."""

from typing import TYPE_CHECKING

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype, dtype_of
from ftcomm.control.messages.direct_receive import DirectReceive
from ftcomm.control.messages.message_parser import ParsedMessage
from ftcomm.errors import ProtocolError
from ftcomm.memory.message_value import ENTRY_BYTES, MessageValue
from ftcomm.memory.pool import Array, LoggedResult, dtype_from_wire, stored_from_wire
from ftcomm.protocol.link_messages import Content
from ftcomm.protocol.message_head import HeadFields, MessageHead
from ftcomm.recovery.messages.message_exchange import MessageArrived

if TYPE_CHECKING:
    from ftcomm.control.driver import Driver
    from ftcomm.control.messages.intake import Intake

# From here on a message is received where its user wants it: a copy costs more than to look.  For a
# receive that was posted that needs the lock, for one of the thread that reads it does not.
POSTED_BYTES = 1 << 16
DIRECT_BYTES = 1 << 15
# Below, the allocator is faster than the pool, which needs the lock.  Of more, it returns to the
# system what is dropped at once, and a step's messages would take fresh pages.
ALLOCATED_BYTES = 1 << 17
_BYTES = np.dtype(np.uint8)


class Arrivals:
    """Messages of `source` in one epoch; for the thread that reads the link."""

    def __init__(self, driver: "Driver", epoch: int, source: int) -> None:
        self._driver, self._epoch, self._source = driver, epoch, source
        # Of the last head, and of the last message: most are like the one before.
        self._fields: HeadFields | None = None
        self._dtype: AnyDtype = _BYTES
        self._taken: tuple[HeadFields | None, AnyDtype, Content] = (None, _BYTES, Content.ARRAY)

    def place_for(self, head: MessageHead, direct: DirectReceive | None) -> Array:
        """Memory for the bytes behind a message's head, which the user owns or will own.

        `direct` is of the thread that reads the link for itself, None where none does.

        Raises:
            ProtocolError: no message is like that, or there is no room.
        """
        fields, hub = head.fields, self._driver.hub
        nbytes = fields.nbytes
        if fields is not self._fields:
            limit = hub.settings.log_limit
            self._dtype = dtype_from_wire(fields.dtype, fields.shape, nbytes, limit)
            self._fields = fields
        if direct is not None and nbytes >= DIRECT_BYTES:
            place = direct.place_for(self._source, fields, self._dtype)
            if place is not None:
                return place
        if fields.content != Content.OBJECT and nbytes >= POSTED_BYTES:
            place = hub.receives.place_for(self._source, head, self._dtype)
            if place is not None:
                return place
        try:
            if nbytes < ALLOCATED_BYTES:
                return np.empty(nbytes, np.uint8)
            with hub.lock:
                return hub.pool.lend(nbytes, _BYTES)
        except MemoryError as error:
            raise ProtocolError(f"no room for {nbytes} bytes: {error}") from None

    def take(self, message: ParsedMessage, intake: "Intake") -> None:
        """Give a message that has come whole to who reads, or to the machine."""
        driver = self._driver
        if driver.hub.faults is not None:
            driver.hub.fault("loading")
        head = message.head
        fields = head.fields
        version, tag, _, code, shape, nbytes = fields
        before, dtype, content = self._taken
        if fields is before:
            stored = LoggedResult(message.raw.view(dtype), shape)
        else:
            dtype, content = dtype_of(code), Content(fields.content)
            stored = stored_from_wire(dtype, shape, message.raw)
            self._taken = fields, dtype, content
        value = MessageValue(stored, content)
        arrived = MessageArrived(
            self._epoch,
            self._source,
            version,
            tag,
            head.number,
            head.digest,
            value,
            nbytes + ENTRY_BYTES,
        )
        driver.arrived(arrived, intake.direct)
