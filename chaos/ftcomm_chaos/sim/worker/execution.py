"""One attempt of a simulated rank to execute a collective over the links of the present epoch."""

import functools
import operator
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from ftcomm.collectives.schedules.pairwise_exchange import shift
from ftcomm.collectives.schedules.schedule import NOBODY, Levels, Reduce, Schedule
from ftcomm.collectives.selection import schedule_for
from ftcomm.protocol.frame_header import FrameHeader
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind
from ftcomm.recovery.archive.placement import local_distances
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import LinkDown, MismatchSeen
from ftcomm.recovery.machine import Completion, NextStep, WorkerState
from ftcomm_chaos.sim.network.frames import Frame, check_frame
from ftcomm_chaos.sim.workload import SimulatedCall, Value

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

Thread = Generator[float | None, None, Any]
SCHEDULED_OUT = 0.02  # how often a thread loses the processor long enough for an epoch to pass
PREEMPTED = 0.4
SITE = "sim.py:1"
STAGE = 1000  # first frame tag of a collective's second stage


def race(process: "SimulatedProcess") -> Thread:
    """Let the control thread in between, sometimes."""
    draw = process.world.rng.random()
    if draw < SCHEDULED_OUT:
        yield process.world.between(0.02, 0.4)
    elif draw < PREEMPTED:
        yield process.world.between(0.0001, 0.004)


def execute(
    process: "SimulatedProcess",
    call: SimulatedCall,
    signature: bytes,
    source: tuple[Any, ...],
    base: int,
) -> Thread:
    """Run the schedule of `call` over the present epoch's links; None if the attempt has failed."""
    core = process.core
    schedule = schedule_for(
        call.kind, core.contact.world_size, core.view.rank, call.count, call.item_bytes,
        algorithm=call.algorithm, root=call.root, grouping=core.view.grouping,
    )  # fmt: skip
    return (yield from run(process, schedule, signature, source, base))


def run(
    process: "SimulatedProcess",
    schedule: Schedule,
    signature: bytes,
    source: tuple[Any, ...],
    base: int,
) -> Thread:
    """Run `schedule`, its frames numbered from `base`; None if the attempt has failed."""
    if schedule.levels is not None:
        return (yield from _levels(process, schedule.levels, signature, source, base))
    core = process.core
    epoch, position = process.turn = core.view.epoch, core.progress.position
    process.require(
        core.view.state is not WorkerState.FINISHED, "all have closed, but it has not (R8)"
    )
    for peer in schedule.peers:
        process.net.connect(process, peer)
    if not (yield from _linked(process, schedule, base)):
        return None
    work: list[Any] = [0] * schedule.recvbuf_count
    steps = functools.partial(_steps, process, base, (epoch, position, signature))
    if not schedule.rounds:
        return (yield from steps(schedule, source, work))
    for one in schedule.rounds:
        rows = [0] * one.row * schedule.world_size
        for part, given, into in ((one.gather, source, rows), (one.spread, work, work)):
            if (yield from steps(part, given, into)) is None:
                return None
        columns = zip(*one.operands(source, rows), strict=True)
        work[one.lo : one.hi] = [functools.reduce(operator.add, column) for column in columns]
    return work


def _levels(
    process: "SimulatedProcess",
    levels: Levels,
    signature: bytes,
    source: tuple[Any, ...],
    base: int,
) -> Thread:
    work = yield from run(process, levels.within, signature, source, base)
    for part in levels.behind:
        block = None if work is None else tuple(work[levels.lo : levels.hi])
        done = None if block is None else (yield from run(process, part, signature, block, base))
        if done is None or part is levels.spread:
            return done
        work[levels.lo : levels.hi] = done


def _linked(process: "SimulatedProcess", schedule: Schedule, base: int) -> Thread:
    """Wait until every peer of the schedule is connected; False if the epoch has ended."""
    epoch = process.core.view.epoch
    process.step, process.blocked_since = base + schedule.first_tag - 1, process.world.now
    try:
        while True:
            process.blocked_on = tuple(
                p for p in schedule.peers if not process.net.is_linked(process, p)
            )
            if not process.blocked_on:
                return True
            yield None
            if has_moved(process, epoch):
                return False
    finally:
        process.blocked_on = ()


def _steps(
    process: "SimulatedProcess",
    base: int,
    header: tuple[int, Position, bytes],
    schedule: Schedule,
    source: Sequence[Any],
    work: list[Any],
) -> Thread:
    epoch, position, signature = header
    for copy in schedule.copies:
        work[copy.work_lo : copy.work_lo + copy.source_hi - copy.source_lo] = source[
            copy.source_lo : copy.source_hi
        ]
    for step in schedule.steps:
        process.step = base + step.tag
        if step.send_to != NOBODY:
            block = tuple((source if step.send_from_sendbuf else work)[step.send_lo : step.send_hi])
            said = FrameHeader(epoch, position, base + step.tag, len(block), signature, SITE)
            if not process.net.send(process, step.send_to, Frame(said, block)):
                _link_down(process, epoch, step.send_to)
                return None
        if step.recv_from == NOBODY:
            continue
        frame = yield from _receive(process, epoch, step.recv_from)
        if frame is None:
            return None
        if frame.header.signature != signature and frame.header.position == position:
            header_ = frame.header
            process.hear(MismatchSeen(epoch, step.recv_from, header_.signature, header_.site))
            return None
        check_frame(frame, epoch, position, base + step.tag)
        own = (source if step.own_in_sendbuf else work)[step.recv_lo : step.recv_hi]
        work[step.recv_lo : step.recv_hi] = _merge(step.reduce, frame.payload, own)
        yield from race(process)
        if has_moved(process, epoch):
            return None
    return work


def has_moved(process: "SimulatedProcess", epoch: int) -> bool:
    """The epoch is over for this thread: the control thread has interrupted it."""
    return (
        process.core.view.epoch != epoch
        or process.core.view.is_frozen
        or process.core.view.state is WorkerState.FAILED
    )


def _merge(reduce: Reduce, incoming: tuple[Any, ...], own: Any) -> list[Any]:
    if reduce is Reduce.NONE:
        return list(incoming)
    if reduce is Reduce.INCOMING_FIRST:
        return [a + b for a, b in zip(incoming, own, strict=True)]
    return [a + b for a, b in zip(own, incoming, strict=True)]


def _receive(process: "SimulatedProcess", epoch: int, rank: int) -> Thread:
    queue = process.inbox[epoch, rank]
    process.blocked_on, process.blocked_since = (rank,), process.world.now
    try:
        while not queue:
            if has_moved(process, epoch):
                return None
            if (epoch, rank) in process.broken:
                _link_down(process, epoch, rank)
                return None
            yield None
        return queue.popleft() if not has_moved(process, epoch) else None
    finally:
        process.blocked_on = ()


def _link_down(process: "SimulatedProcess", epoch: int, rank: int) -> None:
    process.hear(LinkDown(epoch, rank, "broken"))


def settle(process: "SimulatedProcess", complete: Any) -> Thread:
    """Say that an executed collective is complete; hear the tracker first if the core wants it."""
    yield from race(process)
    process.point("completing")
    if process.paused_until is not None:
        yield 0.0
    while True:
        outcome = complete()
        if outcome is not Completion.CONFIRM_FIRST:
            return outcome is Completion.DONE
        process.sim.counters["heard first"] += 1
        yield None


def accuse(process: "SimulatedProcess", theirs: bytes) -> None:
    """Others have run something else at this position."""
    view = process.core.view
    peer = (view.rank + 1) % process.core.contact.world_size
    process.hear(MismatchSeen(view.epoch, peer, theirs, SITE))


def begun(process: "SimulatedProcess", signature: bytes, begin: Any = None) -> Thread:
    """Begin a call, and wait until the core has a step for it."""
    while True:
        step = (begin or process.core.progress.begin)(signature, SITE)
        if step is NextStep.WAIT:
            yield None
        elif isinstance(step, LogEntry) and step.signature != signature:
            accuse(process, step.signature)
        else:
            return step


def replay(process: "SimulatedProcess", again: Any, *arguments: Any) -> Thread:
    """Return what the log holds to the user; hear the tracker first if the core wants it."""
    yield from race(process)
    while True:
        outcome = again(*arguments, now=process.world.now)
        if outcome is not Completion.CONFIRM_FIRST:
            return outcome is Completion.DONE
        process.sim.counters["heard first"] += 1
        yield None


def completed(
    process: "SimulatedProcess",
    at: tuple[int, Position],
    entry: LogEntry,
    value: Value,
    *,
    synchronising: bool = True,
) -> Thread:
    """Complete what was executed `at` an epoch and a position; None if the epoch has ended."""
    epoch, position = at
    done = yield from settle(
        process,
        lambda: process.core.progress.complete(
            epoch, entry, synchronising=synchronising, now=process.world.now
        )[0],
    )
    if not done:
        return None
    process.monitor.on_result(process, position, value, epoch=epoch)
    process.point("completed")
    return value


def copied_to_holders(
    process: "SimulatedProcess",
    signature: bytes,
    value: Value,
    replicas: int,
    base: int,
    keep: Callable[[int, Value], bool],
) -> Thread:
    """Send the own value to each holder, keep the others'; a barrier proves that all have."""
    core, size = process.core, process.core.contact.world_size
    for distance in local_distances(size, replicas):
        counts = (len(value),) * size
        schedule = shift(core.view.keep_order, core.view.rank, distance, counts)
        work = yield from run(process, schedule, signature, value, base)
        if work is None or not keep(schedule.steps[0].recv_from, tuple(work)):
            return False
        process.point("copied")
        base += STAGE
    barrier = SimulatedCall(Kind.BARRIER)
    return (yield from execute(process, barrier, signature, (), base)) is not None
