"""One attempt of a simulated rank to execute a collective over the links of the present epoch."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from ftcomm.collectives.schedules.schedule import NOBODY, Reduce, Schedule
from ftcomm.collectives.selection import schedule_for
from ftcomm.protocol.frame_header import FrameHeader
from ftcomm.protocol.position import Position
from ftcomm.recovery.events import LinkDown, MismatchSeen
from ftcomm.recovery.machine import State
from ftcomm_chaos.sim.network.frames import Frame, check_frame
from ftcomm_chaos.sim.workload import Call

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import Life

Thread = Generator[float | None, None, Any]
SCHEDULED_OUT = 0.02  # how often a thread loses the processor long enough for an epoch to pass
PREEMPTED = 0.4
SITE = "sim.py:1"


def race(life: "Life") -> Thread:
    """Let the control thread in between, sometimes."""
    luck = life.world.rng.random()
    if luck < SCHEDULED_OUT:
        yield life.world.between(0.02, 0.4)
    elif luck < PREEMPTED:
        yield life.world.between(0.0001, 0.004)


def execute(
    life: "Life", call: Call, signature: bytes, source: tuple[Any, ...], base: int
) -> Thread:
    """Run the schedule of `call` over the present epoch's links; None if the attempt has failed."""
    schedule = schedule_for(
        call.kind, life.core.world_size, life.core.rank, call.count, call.item_bytes,
        algorithm=call.algorithm, root=call.root, grouping=life.core.grouping,
    )  # fmt: skip
    return (yield from run(life, schedule, signature, source, base))


def run(
    life: "Life", schedule: Schedule, signature: bytes, source: tuple[Any, ...], base: int
) -> Thread:
    """Run `schedule`, its frames numbered from `base`; None if the attempt has failed."""
    core = life.core
    epoch, position = life.turn = core.epoch, core.position
    life.require(core.state is not State.FINISHED, "all have closed, but it has not (R8)")
    for peer in schedule.peers:
        life.net.connect(life, peer)
    if not (yield from _linked(life, schedule, base)):
        return None
    work = yield from _steps(life, schedule, source, base, (epoch, position, signature))
    return work


def _linked(life: "Life", schedule: Schedule, base: int) -> Thread:
    """Wait until every peer of the schedule is connected; False if the epoch has ended."""
    epoch = life.core.epoch
    life.step, life.blocked_since = base - 1, life.world.now
    try:
        while True:
            life.blocked_on = tuple(p for p in schedule.peers if not life.net.is_linked(life, p))
            if not life.blocked_on:
                return True
            yield None
            if has_moved(life, epoch):
                return False
    finally:
        life.blocked_on = ()


def _steps(
    life: "Life",
    schedule: Schedule,
    source: tuple[Any, ...],
    base: int,
    header: tuple[int, Position, bytes],
) -> Thread:
    epoch, position, signature = header
    work: list[Any] = [0] * schedule.work_count
    for copy in schedule.copies:
        work[copy.work_lo : copy.work_lo + copy.source_hi - copy.source_lo] = source[
            copy.source_lo : copy.source_hi
        ]
    for step in schedule.steps:
        life.step = base + step.tag
        if step.send_to != NOBODY:
            block = tuple((source if step.send_source else work)[step.send_lo : step.send_hi])
            frame = Frame(
                FrameHeader(epoch, position, base + step.tag, len(block), signature, SITE), block
            )
            if not life.net.send(life, step.send_to, frame):
                _link_down(life, epoch, step.send_to)
                return None
        if step.recv_from == NOBODY:
            continue
        frame = yield from _receive(life, epoch, step.recv_from)
        if frame is None:
            return None
        if frame.header.signature != signature and frame.header.position == position:
            header_ = frame.header
            life.hear(MismatchSeen(epoch, step.recv_from, header_.signature, header_.site))
            return None
        check_frame(frame, epoch, position, base + step.tag)
        own = (source if step.own_source else work)[step.recv_lo : step.recv_hi]
        work[step.recv_lo : step.recv_hi] = _merge(step.reduce, frame.payload, own)
        yield from race(life)
        if has_moved(life, epoch):
            return None
    return work


def has_moved(life: "Life", epoch: int) -> bool:
    """The epoch is over for this thread: the control thread has interrupted it."""
    return life.core.epoch != epoch or life.core.is_frozen or life.core.state is State.FAILED


def _merge(reduce: Reduce, incoming: tuple[Any, ...], own: Any) -> list[Any]:
    if reduce is Reduce.NONE:
        return list(incoming)
    if reduce is Reduce.INCOMING_FIRST:
        return [a + b for a, b in zip(incoming, own, strict=True)]
    return [a + b for a, b in zip(own, incoming, strict=True)]


def _receive(life: "Life", epoch: int, rank: int) -> Thread:
    queue = life.inbox[epoch, rank]
    life.blocked_on, life.blocked_since = (rank,), life.world.now
    try:
        while not queue:
            if has_moved(life, epoch):
                return None
            if (epoch, rank) in life.broken:
                _link_down(life, epoch, rank)
                return None
            yield None
        return queue.popleft() if not has_moved(life, epoch) else None
    finally:
        life.blocked_on = ()


def _link_down(life: "Life", epoch: int, rank: int) -> None:
    life.hear(LinkDown(epoch, rank, "broken"))
