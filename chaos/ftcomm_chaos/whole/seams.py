"""Seams: the names in the product's modules that stand for something virtual during a run.

No file of the product knows of this.  Modules of the standard library are replaced in the
namespaces of the product's modules, and what trio does for threads and descriptors in trio's own.
"""

import contextlib
import os
import random
import secrets
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import trio

import ftcomm.join  # noqa: F401 - loads all of a worker
import ftcomm_tracker.server.open_job  # noqa: F401 - loads all of a tracker
from ftcomm_chaos.whole import guards, threads
from ftcomm_chaos.whole.descriptors import DataSocket, EventCounter, VirtualPoll
from ftcomm_chaos.whole.network import FIRST_FD, ConnectionEnd, VirtualKernel
from ftcomm_chaos.whole.world import VirtualProcess, current

PRODUCT = ("ftcomm.", "ftcomm_tracker.core", "ftcomm_tracker.server")
EPOCH_S = 1_700_000_000.0  # the wall time at the beginning of each world
HAND_OVER_S = 0.004  # what a control thread may take to hear of another thread
DELAYED = 0.3  # share of what it is told that reaches it late


def like(module: ModuleType, **replaced: object) -> ModuleType:
    """A copy of a module in which some names are others."""
    copy = ModuleType(module.__name__)
    copy.__dict__.update(vars(module))
    copy.__dict__.update(replaced)
    return copy


class LoopToken:
    """Of one process: functions that its threads give to its control thread."""

    def __init__(self, process: VirtualProcess) -> None:
        self._process = process
        self._given: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._news = trio.Event()
        process.nursery.start_soon(self._run)

    def run_sync_soon(self, function: Callable[..., object], *args: Any) -> None:
        self._process.must_live()
        self._given.append((function, args))
        self._process.world.on_loop(self._news.set)

    async def _run(self) -> None:
        world = self._process.world
        while True:
            while self._given:
                if world.rng.random() < DELAYED:  # the other thread has the processor
                    await world.elapse(world.between(0.0, HAND_OVER_S))
                function, args = self._given.popleft()
                function(*args)
            self._news = trio.Event()
            await self._news.wait()


def loop_token() -> LoopToken:
    """Stands for `current_trio_token`."""
    if threads.running() is not None:
        raise RuntimeError("must be called from async context")
    process = current()
    if "token" not in process.data:
        process.data["token"] = LoopToken(process)
    token: LoopToken = process.data["token"]
    return token


def of_threads() -> ModuleType:
    """`threading`, of virtual threads."""
    return like(
        threading,
        Lock=threads.VirtualLock,
        RLock=threads.VirtualRLock,
        Event=threads.VirtualEvent,
        Condition=threads.VirtualCondition,
        Thread=threads.VirtualThread,
        current_thread=lambda: threads.running() or threading.main_thread(),
        enumerate=lambda: [each for each in current().threads if each.is_alive()],
    )


def of_system(kernel: VirtualKernel) -> ModuleType:
    """`os`, for wakers and handshakes."""

    def counter(fd: int) -> EventCounter:
        thing = kernel.things[fd]
        assert isinstance(thing, EventCounter)
        return thing

    def write(fd: int, data: bytes) -> int:
        counter(fd).add()
        return len(data)

    def read(fd: int, _count: int) -> bytes:
        counter(fd).take()
        return b""

    return like(
        os,
        urandom=kernel.world.rng.randbytes,
        eventfd=lambda _value, _flags=0: EventCounter(kernel).fd,
        write=write,
        read=read,
        close=lambda fd: os.close(fd) if fd < FIRST_FD else None,
    )


def everywhere(kernel: VirtualKernel) -> dict[ModuleType, ModuleType]:
    """Modules of the standard library, and what stands for each in all modules of the product."""
    world = kernel.world

    def clock() -> float:
        return world.now

    return {
        threading: of_threads(),
        time: like(
            time,
            monotonic=clock,
            perf_counter=clock,
            time=lambda: EPOCH_S + world.now,
            sleep=lambda seconds: threads.block(lambda: world.elapse(seconds)),
            strftime=lambda *_: "20231114-000000",
        ),
        random: like(random, random=world.rng.random),
        secrets: like(
            secrets,
            token_bytes=world.rng.randbytes,
            token_hex=lambda count: world.rng.randbytes(count).hex(),
        ),
        select: like(select, poll=lambda: VirtualPoll(kernel)),
    }


def by_name(kernel: VirtualKernel) -> dict[str, object]:
    """Names that stand for something else wherever the product has them."""

    async def never(*_: object) -> None:
        await trio.sleep_forever()

    return {
        "perf_counter": lambda: kernel.world.now,
        "let_others_run": threads.maybe_preempt,
        "spins_before_sleep": lambda *_: 0,  # virtual time does not pass in a loop
        "SPINS_SHARED": 0,
        "exchange_of_frames": lambda: None,  # the compiled one knows real descriptors alone
        "keep_reserve": never,
        "write_progress": never,
        "record_incident": lambda *_, **__: None,
    }


def in_one(kernel: VirtualKernel) -> dict[str, ModuleType]:
    """Names in one module: module and name with a colon between them."""

    def socket_of(*, fileno: int) -> DataSocket:
        end = kernel.things[fileno]
        assert isinstance(end, ConnectionEnd)
        return DataSocket(end)

    system = of_system(kernel)
    return {
        "ftcomm.transport.waker:os": system,
        "ftcomm_tracker.server.connections.authentication:os": system,
        "ftcomm.control.links.manager:socket": like(socket, socket=socket_of),
        "ftcomm.control.thread:trio": like(trio, run=threads.block),
    }


async def wait_readable(kernel: VirtualKernel, fd: int) -> None:
    """Stands for trio's function of that name."""
    await trio.lowlevel.checkpoint()
    while not kernel.things[fd].readable():
        await kernel.things[fd].moved()


async def wait_writable(kernel: VirtualKernel, fd: int) -> None:
    """Stands for trio's function of that name."""
    await trio.lowlevel.checkpoint()
    while not kernel.things[fd].writable():
        await kernel.things[fd].moved()


@contextlib.contextmanager
def virtual(kernel: VirtualKernel) -> Iterator[None]:
    """While inside, the product's modules run on `kernel`."""
    guards.install()
    modules, names = everywhere(kernel), by_name(kernel)
    with contextlib.ExitStack() as undo:

        def replace(owner: object, name: str, stand_in: object) -> None:
            undo.enter_context(mock.patch.object(owner, name, stand_in))

        replace(trio.lowlevel, "current_trio_token", loop_token)
        replace(trio.lowlevel, "wait_readable", lambda fd: wait_readable(kernel, fd))
        replace(trio.lowlevel, "wait_writable", lambda fd: wait_writable(kernel, fd))
        replace(trio.to_thread, "run_sync", threads.run_in_thread)
        replace(threading.Thread, "start", guards.start_of_real_thread(threading.Thread.start))
        for module in [
            sys.modules[name] for name in sorted(sys.modules) if name.startswith(PRODUCT)
        ]:
            for name, value in list(vars(module).items()):
                if isinstance(value, ModuleType) and value in modules:
                    replace(module, name, modules[value])
                elif name in names and value.__class__.__module__ != "typing":
                    replace(module, name, names[name])
        for place, stand_in in in_one(kernel).items():
            module_name, _, name = place.partition(":")
            replace(sys.modules[module_name], name, stand_in)
        yield
