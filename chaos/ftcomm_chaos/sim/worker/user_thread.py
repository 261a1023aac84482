"""The user's thread of a simulated worker: the script, and the engine's loop around the core.

Generators stand for the thread: they yield a delay where the control thread may run between two
steps, and None where the thread sleeps until it is woken.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ftcomm.collectives.schedules.shift import shift
from ftcomm.collectives.selection import synchronising
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind
from ftcomm.recovery.events import Leaving, LinkDown, MismatchSeen, OwnCloseDone
from ftcomm.recovery.machine import Checkpoint, Outcome, State, Step
from ftcomm.recovery.recent_calls import NO_CALL
from ftcomm.recovery.replica_placement import local_distances
from ftcomm.recovery.result_log import Entry
from ftcomm_chaos.sim.fault_injection import CutShort, Killed
from ftcomm_chaos.sim.worker.execution import SITE, Thread, execute, race, run
from ftcomm_chaos.sim.workload import (
    CHECKPOINT,
    CLOSE,
    LOAD,
    Call,
    UsersState,
    default_local,
    default_state,
    next_local,
    next_state,
    state_digest,
)

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import Life

STAGE = 1000  # first frame tag of a collective's second stage


def script(life: "Life") -> Thread:
    """init, prelude, load, versions, close."""
    core, program = life.core, life.sim.program
    yield from _wait_for(life, State.RUNNING)
    life.point("joined")
    for call in program.prelude:
        if program.skips and program.loads and core.frontier.past_load:
            break  # a restarted script may load early (R6)
        yield from _think(life)
        yield from _called(life, functools.partial(_collective, life, call))
    yield from _think(life)
    if program.loads:
        version, state, local = yield from _called(life, functools.partial(_load, life))
        for calls in program.versions[version:]:
            for call in calls:
                yield from _think(life)
                result = yield from _called(life, functools.partial(_collective, life, call))
                state = next_state(state, result)
            yield from _think(life)
            if version < len(program.versions) - 1:
                local = next_local(local, state, core.rank)
                yield from _saved(life, state, local)
            version += 1
    yield from _called(life, functools.partial(_leave_together, life))
    life.sim.monitor.on_finished(life, core.position)


def _leave_together(life: "Life") -> Thread:
    """The whole of close(): also when it is called again."""
    yield from _close(life)
    life.hear(OwnCloseDone())
    life.point("closed")
    yield from _wait_for(life, State.FINISHED)


def _called(life: "Life", body: Callable[[], Thread]) -> Thread:
    """A call that the user makes again when a local exception, as Ctrl-C, has cut it short."""
    while True:
        life.in_call = True
        try:
            return (yield from body())
        except CutShort:
            _cut_short(life)
        finally:
            life.in_call = False
        yield from _think(life)


def _cut_short(life: "Life") -> None:
    """As the data plane does: half of a frame may be on a link, so new links are needed."""
    core = life.core
    core.call = NO_CALL
    turn = (core.epoch, core.position)
    if life.turn == turn and core.world_size > 1:
        life.hear(LinkDown(core.epoch, core.rank, "a call was cut short"))


def _saved(life: "Life", state: int, local: int) -> Thread:
    """A checkpoint that is cut short cannot be made again: others may have committed it."""
    gentle = life.sim.conditions.gentle  # leaving counts as a death
    life.in_call = not gentle
    try:
        yield from _checkpoint(life, state, local)
    except CutShort:
        life.hear(Leaving("a call was cut short"))
        life.die("left")
        raise Killed from None
    finally:
        life.in_call = False


def _wait_for(life: "Life", state: State) -> Thread:
    while life.core.state is not state:
        if life.core.error is not None:
            raise life.core.error
        yield None


def _think(life: "Life") -> Thread:
    yield life.world.between(0.0005, life.sim.conditions.think_s)


def _collective(life: "Life", call: Call) -> Thread:
    core, signature = life.core, _signature(life, call)
    while True:
        position = core.position
        step = core.begin(signature, SITE)
        if step is Step.WAIT:
            yield None
        elif isinstance(step, Entry):
            if step.signature != signature:
                _accuse(life, core.epoch, step.signature)
                continue
            if (yield from _replay(life, core.replay)):
                life.sim.monitor.on_result(life, position, step.value, epoch=None)
                return step.value
        else:
            value = yield from _attempt(life, call, signature, position)
            if value is not None:
                return value


def _attempt(life: "Life", call: Call, signature: bytes, position: Position) -> Thread:
    core, epoch = life.core, life.core.epoch
    life.point("entered")
    work = yield from execute(life, call, signature, call.source(core.rank), 0)
    if work is None:
        return None
    value, sync = tuple(work), synchronising(call.kind)
    entry = Entry(signature, value, call.nbytes_of(value))
    done = yield from _settle(
        life, lambda: core.complete(epoch, entry, synchronising=sync, now=life.world.now)[0]
    )
    if not done:
        return None
    life.sim.monitor.on_result(life, position, value, epoch=epoch)
    life.point("completed")
    return value


def _settle(life: "Life", complete: Any) -> Thread:
    """Say that an executed collective is complete; hear the tracker first if the core wants it."""
    yield from race(life)
    life.point("completing")
    if life.paused_until is not None:
        yield 0.0
    while True:
        outcome = complete()
        if outcome is not Outcome.HEAR_FIRST:
            return outcome is Outcome.DONE
        life.sim.counters["heard first"] += 1
        yield None


def _replay(life: "Life", replay: Any, *arguments: Any) -> Thread:
    """Return what the log holds to the user; hear the tracker first if the core wants it."""
    yield from race(life)
    while True:
        outcome = replay(*arguments, now=life.world.now)
        if outcome is not Outcome.HEAR_FIRST:
            return outcome is Outcome.DONE
        life.sim.counters["heard first"] += 1
        yield None


def _load(life: "Life") -> Thread:
    core = life.core
    while True:
        step = core.begin_load(LOAD.signature, SITE)
        position, epoch = core.position, core.epoch
        if step is Step.WAIT:
            yield None
        elif isinstance(step, Checkpoint):
            if (yield from _replay(life, core.replay_load, step)):
                return _loaded(life, position, step.version, step.value, None)
        elif isinstance(step, Entry):
            _accuse(life, epoch, step.signature)
        else:
            life.point("entered")
            default = Call(Kind.BROADCAST, 1, 0)
            source = (default_state(core.rank),)
            work = yield from execute(life, default, LOAD.signature, source, 0)
            if work is None:
                continue
            barrier = yield from execute(life, Call(Kind.BARRIER), LOAD.signature, (), STAGE)
            if barrier is None:
                continue
            state = work[0]
            if (yield from _settle(
                life, lambda: core.complete_load(epoch, state, b"", now=life.world.now)  # noqa: B023 - run now
            )):  # fmt: skip
                loaded = _loaded(life, position, 0, state, epoch)
                life.point("completed")
                return loaded


def _loaded(
    life: "Life", position: Position, version: int, state: int, epoch: int | None
) -> tuple[int, int, int]:
    local = life.core.locals.get(version, life.core.rank)
    if local is None:
        local = default_local(life.core.rank)
    life.sim.monitor.on_load(life, position, version, (state, local), epoch=epoch)
    return version, state, local


def _checkpoint(life: "Life", state: int, local: int) -> Thread:
    core, position, call = life.core, life.core.position, life.sim.program.checkpoint
    lazy = life.sim.conditions.lazy
    kept: int | UsersState = UsersState(state) if lazy else state
    digest = state_digest(0 if lazy else _given(life, state))  # of a lazy one nothing is compared
    keeps = life.sim.program.keeps_locals
    version = core.offer_checkpoint(kept, digest, local if keeps else None)
    life.point("offered")
    while core.position.version < version:
        step = core.begin(call.signature, SITE)
        if step is Step.WAIT:
            yield None
        elif isinstance(step, Entry):
            _accuse(life, core.epoch, step.signature)
        else:
            yield from _agree(life, digest, local if keeps else None)
    life.sim.monitor.on_checkpoint(life, position, version)
    if life.kept is not None:
        life.kept.overwrite()
    life.kept = kept if isinstance(kept, UsersState) else None


def _agree(life: "Life", digest: bytes, local: int | None) -> Thread:
    """All ranks compare their digests and copy their local states; then it is committed."""
    core, epoch = life.core, life.core.epoch
    signature = life.sim.program.checkpoint.signature
    life.point("entered")
    gather = Call(Kind.ALLGATHER, 1)
    mine = (int.from_bytes(digest, "big"),)
    work = yield from execute(life, gather, signature, mine, 0)
    if work is None:
        return
    if len(set(work)) > 1:
        life.require(life.sim.counters["odd calls"] > 0, f"digests differ: {work}")
        peer = next(rank for rank, theirs in enumerate(work) if theirs != mine[0])
        life.hear(MismatchSeen(epoch, peer, signature, SITE, states=True))
        return
    if local is not None and not (yield from _copy_locals(life, local, signature, epoch)):
        return
    done = yield from _settle(life, lambda: core.complete_checkpoint(epoch, now=life.world.now)[0])
    if done:
        life.point("completed")


def _copy_locals(life: "Life", local: int, signature: bytes, epoch: int) -> Thread:
    """Send one's own to each keeper, hold the others'; a barrier proves that all have done so."""
    core, size = life.core, life.core.world_size
    base = STAGE
    for distance in local_distances(size, core.limits.local_replicas):
        schedule = shift(core.keep_order, core.rank, distance, (1,) * size)
        work = yield from run(life, schedule, signature, (local,), base)
        sender = schedule.steps[0].recv_from
        version = core.position.version + 1
        if work is None or not core.keep_local(epoch, version, sender, work[0]):
            return False
        life.point("copied")
        base += STAGE
    return (yield from execute(life, Call(Kind.BARRIER), signature, (), base)) is not None


def _close(life: "Life") -> Thread:
    core = life.core
    position = core.position
    while not core.closed:
        step = core.begin(CLOSE.signature, SITE)
        epoch = core.epoch
        if step is Step.WAIT:
            yield None
        elif isinstance(step, Entry):
            if step.signature != CLOSE.signature:
                _accuse(life, core.epoch, step.signature)
                continue
            if (yield from _replay(life, core.replay_close)):
                life.sim.monitor.on_result(life, position, (), epoch=None)
        else:
            life.point("entered")
            work = yield from execute(life, Call(Kind.BARRIER), CLOSE.signature, (), 0)
            if work is not None and (yield from _settle(
                life,
                lambda: core.complete_close(
                    epoch, Entry(CLOSE.signature, ()), now=life.world.now  # noqa: B023 - run now
                ),
            )):  # fmt: skip
                life.sim.monitor.on_result(life, position, (), epoch=epoch)


def _accuse(life: "Life", epoch: int, theirs: bytes) -> None:
    peer = (life.core.rank + 1) % life.core.world_size
    life.hear(MismatchSeen(epoch, peer, theirs, SITE))


def _signature(life: "Life", call: Call) -> bytes:
    """The call's signature, or another one where the seed plans a defect of the script."""
    return CHECKPOINT.signature if _is_odd(life) else call.signature


def _given(life: "Life", state: int) -> int:
    """The state that the script gives to a checkpoint, or another one, likewise."""
    return state ^ 1 if _is_odd(life) else state


def _is_odd(life: "Life") -> bool:
    if life.sim.odd_one != (life.core.rank, life.core.position):
        return False
    life.sim.counters["odd calls"] += 1
    return True
