"""Descriptors of the data plane: raw sockets, `select.poll` and eventfds over the kernel."""

import select
import socket
from collections.abc import Iterable
from typing import Any

import trio

from ftcomm_chaos.whole.network import ConnectionEnd, Descriptor, VirtualKernel
from ftcomm_chaos.whole.threads import maybe_preempt, wait


class EventCounter(Descriptor):
    """An eventfd."""

    value = 0

    def readable(self) -> bool:
        return self.value > 0

    def add(self) -> None:
        self.value += 1
        self.changed()

    def take(self) -> None:
        if not self.value:
            raise BlockingIOError
        self.value = 0


class DataSocket:
    """A socket made from a descriptor, `socket.socket(fileno=...)`; it never blocks."""

    family = socket.AF_INET

    def __init__(self, end: ConnectionEnd) -> None:
        self._end, self._fd = end, end.fd

    def setblocking(self, _flag: object) -> None:
        pass

    def setsockopt(self, *_: object) -> None:
        pass

    def fileno(self) -> int:
        return self._fd

    def recv_into(self, buffer: Any, *_: object) -> int:
        maybe_preempt()
        return self._end.take(memoryview(buffer).cast("B"))

    def sendmsg(self, buffers: Iterable[Any], *_: object) -> int:
        maybe_preempt()
        return self._end.give(b"".join(bytes(memoryview(part).cast("B")) for part in buffers))

    def shutdown(self, how: int) -> None:
        self._end.shutdown(how)

    def close(self) -> None:
        self._fd = -1
        if not self._end.owner.is_dead:
            self._end.kernel_close()


class VirtualPoll:
    """`select.poll` for virtual threads."""

    def __init__(self, kernel: VirtualKernel) -> None:
        self._kernel = kernel
        self._masks: dict[int, int] = {}

    def register(self, fd: int, mask: int) -> None:
        self._masks[fd] = mask

    def unregister(self, fd: int) -> None:
        del self._masks[fd]

    def _ready(self) -> list[tuple[int, int]]:
        found = []
        for fd, mask in self._masks.items():
            thing = self._kernel.things[fd]
            bits = mask & (select.POLLIN * thing.readable() | select.POLLOUT * thing.writable())
            if bits:
                found.append((fd, bits))
        return found

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        world = self._kernel.world
        forever = timeout_ms is None or timeout_ms < 0
        until = float("inf") if forever or timeout_ms is None else world.now + timeout_ms / 1000
        while not (found := self._ready()) and world.now < until:
            event = trio.Event()
            things = [self._kernel.things[fd] for fd in self._masks]
            for thing in things:
                thing.watchers.append(event)
            wait(event, until - world.now)
            for thing in things:
                if event in thing.watchers:
                    thing.watchers.remove(event)
        return found
