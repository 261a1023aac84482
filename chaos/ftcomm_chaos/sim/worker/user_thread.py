"""The user's thread of a simulated worker: the script, and the engine's loop around the core.

Generators stand for the thread: they yield a delay where the control thread may run between two
steps, and None where the thread sleeps until it is woken.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ftcomm.collectives.selection import synchronising
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import (
    CheckpointCommitted,
    Leaving,
    LinkDown,
    MismatchSeen,
    OwnCloseDone,
)
from ftcomm.recovery.machine import Checkpoint, NextStep, WorkerState
from ftcomm.recovery.recent_calls import NO_CALL
from ftcomm_chaos.sim.fault_injection import CutShort, Killed
from ftcomm_chaos.sim.worker.execution import (
    SITE,
    STAGE,
    Thread,
    accuse,
    begun,
    completed,
    copied_to_holders,
    execute,
    replay,
    settle,
)
from ftcomm_chaos.sim.worker.messages import own_messages, pass_message
from ftcomm_chaos.sim.worker.rank_results import rank_result_call
from ftcomm_chaos.sim.workload import (
    CHECKPOINT,
    CLOSE,
    LOAD,
    SimulatedCall,
    UsersState,
    after_call,
    default_local,
    default_state,
    next_local,
    state_digest,
)

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

MARKED = 0.7  # share of the checkpoints that rank 0 marks when none is being written


def script(process: "SimulatedProcess") -> Thread:
    """init, prelude, load, versions, close."""
    core, program = process.core, process.sim.program
    yield from _wait_for(process, WorkerState.RUNNING)
    process.point("joined")
    for call in program.prelude:
        if program.skips and program.loads and core.view.frontier.past_load:
            break  # a restarted script may load early (R6)
        yield from _think(process)
        yield from _called(process, functools.partial(_collective, process, call))
    yield from _think(process)
    if program.loads:
        version, state, local = yield from _called(process, functools.partial(_load, process))
        for calls in program.versions[version:]:
            for index, call in enumerate(calls):
                yield from _messages(process, version, index)
                yield from _think(process)
                body = _collective if call.is_whole else rank_result_call
                result = yield from _called(process, functools.partial(body, process, call))
                state = after_call(state, call, result)
            yield from _messages(process, version, len(calls))
            yield from _think(process)
            if version < len(program.versions) - 1:
                local = next_local(local, state, core.view.rank)
                yield from _saved(process, state, local)
            version += 1
    yield from _called(process, functools.partial(_leave_together, process))
    process.monitor.on_finished(process, core.progress.position)


def _messages(process: "SimulatedProcess", version: int, index: int) -> Thread:
    """Send and receive what the script has before a call."""
    for message in own_messages(process, version, index):
        yield from _think(process)
        yield from _called(process, functools.partial(pass_message, process, message))


def _leave_together(process: "SimulatedProcess") -> Thread:
    """The whole of close(): also when it is called again."""
    yield from _close(process)
    process.hear(OwnCloseDone())
    process.point("closed")
    yield from _wait_for(process, WorkerState.FINISHED)


def _called(process: "SimulatedProcess", body: Callable[[], Thread]) -> Thread:
    """A call that the user makes again when an exception of the user's own has cut it short."""
    while True:
        process.in_call = True
        try:
            return (yield from body())
        except CutShort:
            _cut_short(process)
        finally:
            process.in_call = False
        yield from _think(process)


def _cut_short(process: "SimulatedProcess") -> None:
    """Ask for the next epoch, like the data plane.

    Half of a frame may be on a link, so new links are needed.
    """
    core = process.core
    core.progress.call = NO_CALL
    turn = (core.view.epoch, core.progress.position)
    if process.turn == turn and core.contact.world_size > 1:
        process.hear(LinkDown(core.view.epoch, core.view.rank, "a call was cut short"))


def _saved(process: "SimulatedProcess", state: int, local: int) -> Thread:
    """A checkpoint that is cut short cannot be made again: others may have committed it."""
    gentle = process.sim.conditions.gentle  # leaving counts as a death
    process.in_call = not gentle
    try:
        yield from _checkpoint(process, state, local)
    except CutShort:
        process.hear(Leaving("a call was cut short"))
        process.die("left")
        raise Killed from None
    finally:
        process.in_call = False


def _wait_for(process: "SimulatedProcess", state: WorkerState) -> Thread:
    while process.core.view.state is not state:
        if process.core.view.error is not None:
            raise process.core.view.error
        yield None


def _think(process: "SimulatedProcess") -> Thread:
    yield process.world.between(0.0005, process.sim.conditions.think_s)


def _collective(process: "SimulatedProcess", call: SimulatedCall) -> Thread:
    core, signature = process.core, _signature(process, call)
    while True:
        step = yield from begun(process, signature)
        position = core.progress.position
        if not isinstance(step, LogEntry):
            value = yield from _attempt(process, call, signature, position)
            if value is not None:
                return value
        elif (yield from replay(process, core.progress.replay)):
            process.monitor.on_result(process, position, step.value, epoch=None)
            return step.value


def _attempt(
    process: "SimulatedProcess", call: SimulatedCall, signature: bytes, position: Position
) -> Thread:
    core, epoch = process.core, process.core.view.epoch
    process.point("entered")
    work = yield from execute(process, call, signature, call.source(core.view.rank), 0)
    if work is None:
        return None
    value, sync = tuple(work), synchronising(call.kind)
    entry = LogEntry(signature, value, call.nbytes_of(value))
    return (yield from completed(process, (epoch, position), entry, value, synchronising=sync))


def _load(process: "SimulatedProcess") -> Thread:
    core, progress = process.core, process.core.progress
    while True:
        step = yield from begun(process, LOAD.signature, core.progress.begin_load)
        position, epoch = core.progress.position, core.view.epoch
        if isinstance(step, Checkpoint):
            if (yield from replay(process, core.progress.replay_load, step)):
                return _loaded(process, position, step.version, step.value, None)
        else:
            process.point("entered")
            default = SimulatedCall(Kind.BROADCAST, 1, 0)
            source = (default_state(core.view.rank),)
            work = yield from execute(process, default, LOAD.signature, source, 0)
            if work is None:
                continue
            barrier = yield from execute(
                process, SimulatedCall(Kind.BARRIER), LOAD.signature, (), STAGE
            )
            if barrier is None:
                continue
            state = work[0]
            if (yield from settle(
                process,
                lambda: progress.complete_load(epoch, state, b"", now=process.world.now),  # noqa: B023 - run now
            )):  # fmt: skip
                loaded = _loaded(process, position, 0, state, epoch)
                process.point("completed")
                return loaded


def _loaded(
    process: "SimulatedProcess", position: Position, version: int, state: int, epoch: int | None
) -> tuple[int, int, int]:
    local = process.core.archive.locals.get(version, process.core.view.rank)
    if local is None:
        local = default_local(process.core.view.rank)
    process.monitor.on_load(process, position, version, (state, local), epoch=epoch)
    return version, state, local


def _checkpoint(process: "SimulatedProcess", state: int, local: int) -> Thread:
    core, position, call = (
        process.core,
        process.core.progress.position,
        process.sim.program.checkpoint,
    )
    lazy = process.sim.conditions.lazy
    kept: int | UsersState = UsersState(state) if lazy else state
    # of a lazy one nothing is compared
    digest = state_digest(0 if lazy else _given(process, state))
    keeps = process.sim.program.keeps_locals
    version = core.progress.offer_checkpoint(kept, digest, local if keeps else None)
    process.point("offered")
    while core.progress.position.version < version:
        step = core.progress.begin(call.signature, SITE)
        if step is NextStep.WAIT:
            yield None
        elif isinstance(step, LogEntry):
            accuse(process, step.signature)
        else:
            yield from _agree(process, digest, local if keeps else None)
    process.monitor.on_checkpoint(process, position, version)
    while core.durables.must_pack(version - 1):
        yield from _unless_over(process)
    if version in process.sim.durable_versions:
        found = core.durables.await_record(version, NO_CALL, process.world.now)
        if found is not None:
            process.hear(found)
        while core.durables.awaits_record:
            yield from _unless_over(process)
    if process.kept is not None:
        process.kept.overwrite()
    process.kept = kept if isinstance(kept, UsersState) else None


def _unless_over(process: "SimulatedProcess") -> Thread:
    """Sleep until something has changed."""
    if process.core.view.error is not None:
        raise process.core.view.error
    yield None


def _agree(process: "SimulatedProcess", digest: bytes, local: int | None) -> Thread:
    """All ranks compare their digests and copy their local states; then it is committed."""
    core, epoch = process.core, process.core.view.epoch
    signature = process.sim.program.checkpoint.signature
    process.point("entered")
    mark = _mark(process)
    balance = divmod(core.messages.balance, 1 << 32)  # elements are floats, of 52 bits
    mine = (int.from_bytes(digest, "big"), *balance, *([] if mark is None else [mark]))
    gather = SimulatedCall(Kind.ALLGATHER, len(mine))
    work = yield from execute(process, gather, signature, mine, 0)
    if work is None:
        return
    digests, marks = work[:: len(mine)], work[len(mine) - 1 :: len(mine)]
    _require_a_cut(process, work, len(mine), 1)
    if len(set(digests)) > 1:
        process.require(process.sim.counters["odd calls"] > 0, f"digests differ: {work}")
        peer = next(rank for rank, theirs in enumerate(digests) if theirs != mine[0])
        process.hear(MismatchSeen(epoch, peer, signature, SITE, states=True))
        return
    if local is not None and not (yield from _copy_locals(process, local, signature, epoch)):
        return
    done = yield from settle(
        process, lambda: core.progress.complete_checkpoint(epoch, now=process.world.now)[0]
    )
    if done:
        is_marked = mark is not None and bool(marks[0])
        if is_marked or core.durables.must_tell_next:
            process.hear(CheckpointCommitted(is_marked))
        process.point("completed")


def _require_a_cut(
    process: "SimulatedProcess", work: Sequence[float], width: int, first: int
) -> None:
    """All ranks' balances, each in two elements from `first` on, add up to none."""
    high, low = (sum(map(int, work[at::width])) for at in (first, first + 1))
    process.require(((high << 32) + low) % (1 << 64) == 0, "a cut with a message on its way (R21)")


def _mark(process: "SimulatedProcess") -> int | None:
    """Rank 0's byte: its clock says that this version is to be written. None without a store."""
    if process.sim.store is None:
        return None
    due = process.core.progress.position.version + 1 in process.sim.durable_versions
    by_clock = process.core.durables.is_idle and process.world.chance(MARKED)
    return int(due or by_clock)


def _copy_locals(process: "SimulatedProcess", local: int, signature: bytes, epoch: int) -> Thread:
    core = process.core
    version = core.progress.position.version + 1
    return copied_to_holders(
        process, signature, (local,), core.contact.limits.local_replicas, STAGE,
        lambda owner, theirs: core.progress.keep_local(epoch, version, owner, theirs[0]),
    )  # fmt: skip


def _close(process: "SimulatedProcess") -> Thread:
    core = process.core
    position = core.progress.position
    while not core.progress.closed:
        step = core.progress.begin(CLOSE.signature, SITE)
        epoch = core.view.epoch
        if step is NextStep.WAIT:
            yield None
        elif isinstance(step, LogEntry):
            if step.signature != CLOSE.signature:
                accuse(process, step.signature)
                continue
            if (yield from replay(process, core.progress.replay_close)):
                process.monitor.on_result(process, position, (), epoch=None)
        else:
            process.point("entered")
            balance = divmod(core.messages.balance, 1 << 32)
            gather = SimulatedCall(Kind.ALLGATHER, len(balance))
            work = yield from execute(process, gather, CLOSE.signature, balance, 0)
            if work is not None:
                _require_a_cut(process, work, len(balance), 0)
            if work is not None and (yield from settle(
                process,
                lambda: core.progress.complete_close(
                    epoch, LogEntry(CLOSE.signature, ()), now=process.world.now  # noqa: B023 - run now
                ),
            )):  # fmt: skip
                process.monitor.on_result(process, position, (), epoch=epoch)


def _signature(process: "SimulatedProcess", call: SimulatedCall) -> bytes:
    """The call's signature, or another one where the seed plans a defect of the script."""
    return CHECKPOINT.signature if _is_odd(process) else call.signature


def _given(process: "SimulatedProcess", state: int) -> int:
    """The state that the script gives to a checkpoint, or another one, likewise."""
    return state ^ 1 if _is_odd(process) else state


def _is_odd(process: "SimulatedProcess") -> bool:
    if process.sim.odd_one != (process.core.view.rank, process.core.progress.position):
        return False
    process.sim.counters["odd calls"] += 1
    return True
