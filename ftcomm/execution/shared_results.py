"""Selection of the calls that use the shared window, and the time from which it is available."""

import functools

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.collectives.schedules.schedule import Schedule
from ftcomm.control.hub import Hub
from ftcomm.control.links.shared_window_setup import locate_shared_window, may_have_shared_window
from ftcomm.control.thread import ControlThread
from ftcomm.execution.executor import SMALL_BYTES
from ftcomm.execution.header_check import CallHeader
from ftcomm.execution.shared_reduction import ResultSlots, scratch_elements
from ftcomm.memory.pool import Array
from ftcomm.protocol.position import PRELUDE
from ftcomm.protocol.signature import Algorithm, Kind
from ftcomm.requests.request import CollectiveSpec
from ftcomm.transport.shared_window import SharedWindow

_BYTE: AnyDtype = np.dtype(np.uint8)


def suits_shared_window(schedule: Schedule, itemsize: int) -> bool:
    """Tell whether a call of `schedule` uses the shared window where there is one.

    The same on all ranks.  It pays where blocks are too large for one frame: below that a call
    waits more than it copies.
    """
    size = schedule.world_size
    if schedule.kind is not Kind.ALLREDUCE or size < 2:
        return False
    if schedule.recvbuf_count // size * itemsize <= SMALL_BYTES:
        return False
    halving = schedule.algorithm is Algorithm.HALVING_DOUBLING
    # of another number some ranks stand aside, and end the first half without a block
    return schedule.algorithm is Algorithm.RING or (halving and size & (size - 1) == 0)


class SharedResults:
    """State of the shared window, for the thread that makes the calls."""

    def __init__(self, hub: Hub, control: ControlThread) -> None:
        self._hub = hub
        self._control = control
        self._joined: SharedWindow | None = None
        self._sought = 0  # the epoch in which it was
        self._left: list[SharedWindow] = []  # of epochs that are over, into which something looks

    def memory_for(self, form: CollectiveSpec, turn: CallHeader) -> SharedWindow | None:
        """Shared window, if the call of this form and turn is made there.

        The first such call of an epoch has it sought, and does not wait for it.  What comes before
        the first load is logged as long as the job runs, and would keep all that lay beside it.
        """
        hub, schedule, epoch = self._hub, form.schedule, turn.epoch
        if schedule is None or turn.position.version == PRELUDE:
            return None
        if not suits_shared_window(schedule, form.work_dtype.itemsize):
            return None
        memory = hub.shared_window
        if self._joined is not None and memory is not self._joined:
            self._leave(self._joined)
        if memory is None or memory.epoch != epoch:
            if self._sought != epoch and may_have_shared_window(hub):
                driver = self._control.driver
                driver.run_soon(functools.partial(locate_shared_window, driver, epoch))
            self._sought = epoch
            return None
        if self._joined is None:
            memory.join()
            self._joined = memory
        memory.release()
        return memory

    def next_version(self) -> None:
        """A checkpoint is committed.  Without the hub's lock: pages take their time to be freed."""
        if self._joined is not None and self._hub.shared_window is not self._joined:
            self._leave(self._joined)
        if self._joined is not None:
            self._joined.next_version()
        self._left = [memory for memory in self._left if memory.shrink()]

    def _leave(self, memory: SharedWindow) -> None:
        """The epoch of what was joined is over."""
        self._joined = None
        if memory.shrink():
            self._left.append(memory)

    def places(self, form: CollectiveSpec, memory: SharedWindow) -> ResultSlots:
        """Return the memory for the result of a call of `form`; `give_back` releases it."""
        assert form.schedule is not None, "calls of one schedule"
        hub, dtype = self._hub, as_executed(form.work_dtype)
        with hub.lock:
            scratch = hub.pool.take(scratch_elements(form.schedule) * dtype.itemsize, _BYTE)
        return ResultSlots(memory, functools.partial(self._own, form), scratch.view(dtype))

    def give_back(self, places: ResultSlots) -> None:
        """The call is over: its scratch is free."""
        scratch = places.scratch.base
        if isinstance(scratch, np.ndarray):
            with self._hub.lock:
                self._hub.pool.put(scratch)

    def _own(self, form: CollectiveSpec) -> Array:
        with self._hub.lock:
            own = self._hub.pool.take(form.recvbuf_count, form.work_dtype)
        return own.view(as_executed(form.work_dtype))


def as_executed(dtype: AnyDtype) -> AnyDtype:
    """Dtype under which the executor moves elements: there are no memoryviews of bfloat16."""
    return np.dtype(np.uint16) if dtype.kind == "V" else dtype
