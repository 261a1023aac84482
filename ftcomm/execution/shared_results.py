"""Which calls are made in memory that all ranks of a host have in common, and when it is there."""

import functools

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.control.hub import Hub
from ftcomm.control.links.shared_window_setup import may_have_common_memory, seek_common
from ftcomm.control.thread import ControlThread
from ftcomm.execution.header_check import CallHeader
from ftcomm.execution.shared_reduction import Places, scratch_elements, suits_common_memory
from ftcomm.memory.pool import Array
from ftcomm.protocol.position import PRELUDE
from ftcomm.requests.request import Form
from ftcomm.transport.shared_window import CommonMemory

_BYTE: AnyDtype = np.dtype(np.uint8)


class CommonResults:
    """What the thread that makes the calls knows of common memory."""

    def __init__(self, hub: Hub, control: ControlThread) -> None:
        self._hub = hub
        self._control = control
        self._joined: CommonMemory | None = None
        self._sought = 0  # the epoch in which it was
        self._left: list[CommonMemory] = []  # of epochs that are over, into which something looks

    def memory_for(self, form: Form, turn: CallHeader) -> CommonMemory | None:
        """Common memory, if the call of this form and turn is made there.

        The first such call of an epoch has it sought, and does not wait for it.  What comes before
        the first load is logged as long as the job lives, and would keep all that lay beside it.
        """
        hub, schedule, epoch = self._hub, form.schedule, turn.epoch
        if schedule is None or turn.position.version == PRELUDE:
            return None
        if not suits_common_memory(schedule, form.dtype.itemsize):
            return None
        memory = hub.common
        if self._joined is not None and memory is not self._joined:
            self._leave(self._joined)
        if memory is None or memory.epoch != epoch:
            if self._sought != epoch and may_have_common_memory(hub):
                driver = self._control.driver
                driver.run_soon(functools.partial(seek_common, driver, epoch))
            self._sought = epoch
            return None
        if self._joined is None:
            memory.join()
            self._joined = memory
        memory.let_go()
        return memory

    def next_version(self) -> None:
        """A checkpoint is committed.  Without the hub's lock: pages take their time to be freed."""
        if self._joined is not None and self._hub.common is not self._joined:
            self._leave(self._joined)
        if self._joined is not None:
            self._joined.next_version()
        self._left = [memory for memory in self._left if memory.shrink()]

    def _leave(self, memory: CommonMemory) -> None:
        """The epoch of what was joined is over."""
        self._joined = None
        if memory.shrink():
            self._left.append(memory)

    def places(self, form: Form, memory: CommonMemory) -> Places:
        """Where a call of `form` is made; `give_back` ends it."""
        assert form.schedule is not None, "calls of one schedule"
        hub, dtype = self._hub, as_executed(form.dtype)
        with hub.lock:
            scratch = hub.pool.take(scratch_elements(form.schedule) * dtype.itemsize, _BYTE)
        return Places(memory, functools.partial(self._own, form), scratch.view(dtype))

    def give_back(self, places: Places) -> None:
        """The call is over: its scratch is free."""
        scratch = places.scratch.base
        if isinstance(scratch, np.ndarray):
            with self._hub.lock:
                self._hub.pool.put(scratch)

    def _own(self, form: Form) -> Array:
        with self._hub.lock:
            own = self._hub.pool.take(form.work_count, form.dtype)
        return own.view(as_executed(form.dtype))


def as_executed(dtype: AnyDtype) -> AnyDtype:
    """As the executor sees elements: there are no memoryviews of bfloat16."""
    return np.dtype(np.uint16) if dtype.kind == "V" else dtype
