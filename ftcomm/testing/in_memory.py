"""Schedules of all ranks of a collective, executed in one process: for tests and the simulator."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from ftcomm.collectives.reductions import Array, Reducer
from ftcomm.collectives.schedules.schedule import (
    NOBODY,
    REDUCE_SEGMENT_BYTES,
    Reduce,
    Round,
    Schedule,
    Step,
)
from ftcomm.protocol.signature import Algorithm, Kind


class DeadlockError(RuntimeError):
    """No rank can go on: the schedules do not fit together."""


@dataclass(slots=True)
class _Rank:
    schedule: Schedule
    sendbuf: Array
    recvbuf: Array
    known: set[int]
    at: int = 0
    sent: bool = False
    received: bool = False
    held: Array | None = None

    @property
    def step(self) -> Step | None:
        steps = self.schedule.steps
        return steps[self.at] if self.at < len(steps) else None

    def outgoing(self, step: Step) -> Array:
        buffer = self.sendbuf if step.send_from_sendbuf else self.recvbuf
        return buffer[step.send_lo : step.send_hi].copy()


@dataclass(slots=True)
class _Message:
    tag: int
    payload: Array
    known: frozenset[int]


@dataclass(slots=True)
class _Network:
    """`rendezvous`: a send ends only when its receiver has come to the receive."""

    ranks: list[_Rank]
    reducer: Reducer | None
    rendezvous: bool
    queues: dict[tuple[int, int], deque[_Message]] = field(default_factory=dict)

    def run(self) -> None:
        while any(rank.step is not None for rank in self.ranks):
            moved = [self._advance(index) for index in range(len(self.ranks))]
            if not any(moved):
                stuck = {i: r.step for i, r in enumerate(self.ranks) if r.step is not None}
                raise DeadlockError(f"no rank can continue: {stuck}")
        left = {ends for ends, queue in self.queues.items() if queue}
        if left:
            raise DeadlockError(f"messages that no rank receives between {left}")

    def _advance(self, index: int) -> bool:
        rank = self.ranks[index]
        step = rank.step
        if step is None:
            return False
        moved = self._try_receive(index, rank, step)
        moved = self._try_send(index, rank, step) or moved
        if rank.sent and rank.received:
            if rank.held is not None:
                _merge(rank, step, rank.held, self.reducer)
            rank.at, rank.sent, rank.received, rank.held = rank.at + 1, False, False, None
            moved = True
        return moved

    def _try_send(self, index: int, rank: _Rank, step: Step) -> bool:
        if rank.sent:
            return False
        if step.send_to != NOBODY:
            if self.rendezvous and not self._is_awaited(step.send_to, index):
                return False
            queue = self.queues.setdefault((index, step.send_to), deque())
            queue.append(_Message(step.tag, rank.outgoing(step), frozenset(rank.known)))
        rank.sent = True
        return True

    def _is_awaited(self, receiver: int, sender: int) -> bool:
        rank = self.ranks[receiver]
        step = rank.step
        return step is not None and step.recv_from == sender and not rank.received

    def _try_receive(self, index: int, rank: _Rank, step: Step) -> bool:
        if rank.received:
            return False
        if step.recv_from != NOBODY:
            queue = self.queues.get((step.recv_from, index))
            if not queue:
                return False
            message = queue.popleft()
            assert message.tag == step.tag, "sender and receiver disagree about the step"
            assert message.payload.size == step.recv_hi - step.recv_lo, "block sizes differ"
            rank.known |= message.known
            if step.deferred:
                rank.held = message.payload
            else:
                _merge(rank, step, message.payload, self.reducer)
        rank.received = True
        return True


def _merge(rank: _Rank, step: Step, incoming: Array, reducer: Reducer | None) -> None:
    out = rank.recvbuf[step.recv_lo : step.recv_hi]
    if step.reduce is Reduce.NONE:
        out[:] = incoming
        return
    assert reducer is not None, "a reducing step needs a reducer"
    own = (rank.sendbuf if step.own_in_sendbuf else rank.recvbuf)[step.recv_lo : step.recv_hi]
    if step.reduce is Reduce.INCOMING_FIRST:
        combine_segments(reducer, incoming, own, out)
    else:
        combine_segments(reducer, own, incoming, out)


def combine_segments(reducer: Reducer, accumulator: Array, operand: Array, out: Array) -> None:
    """Reduce one block, segment by segment; the only unit in which a reduction is ever called."""
    size = max(out.size, 1) if reducer.whole else REDUCE_SEGMENT_BYTES // out.itemsize
    with np.errstate(all="ignore"):
        for lo in range(0, out.size, size):
            segment = slice(lo, lo + size)
            reducer.combine(accumulator[segment], operand[segment], out[segment])


def run_in_memory(
    schedules: Sequence[Schedule],
    sources: Sequence[Array],
    reducer: Reducer | None = None,
    *,
    rendezvous: bool = False,
) -> list[Array]:
    """Execute one collective on all ranks; returns each rank's work; raises DeadlockError.

    Args:
        schedules: one per rank, in rank order.
        sources: each rank's input; a rank without one gives an empty array of the dtype.
        reducer: for reducing kinds.
        rendezvous: sends block until they are received, as with full socket buffers.
    """
    results = _run(schedules, sources, reducer, rendezvous=rendezvous)
    if reducer is not None:
        for result in results:
            reducer.finish(result, len(schedules))
    return results


_Parts = Sequence[Schedule | None]  # None for a rank without a part


def _run(
    given: _Parts, sources: Sequence[Array], reducer: Reducer | None, *, rendezvous: bool
) -> list[Array]:
    """The same without the end of the reduction."""
    schedules = _idle(given)
    if any(schedule.levels is not None for schedule in schedules):
        return _run_levels(schedules, sources, reducer, rendezvous=rendezvous)
    results: list[Array] = []
    for schedule, sendbuf in zip(schedules, sources, strict=True):
        recvbuf = np.zeros(schedule.recvbuf_count, sendbuf.dtype)
        for copy in schedule.copies:
            length = copy.source_hi - copy.source_lo
            recvbuf[copy.work_lo : copy.work_lo + length] = sendbuf[copy.source_lo : copy.source_hi]
        results.append(recvbuf)
    _run_steps(schedules, sources, results, reducer, rendezvous=rendezvous)
    for rounds in zip_longest(*(schedule.rounds for schedule in schedules)):
        _run_round(rounds, sources, results, reducer, rendezvous=rendezvous)
    return results


def _run_levels(
    schedules: Sequence[Schedule],
    sources: Sequence[Array],
    reducer: Reducer | None,
    *,
    rendezvous: bool,
) -> list[Array]:
    every = [schedule.levels for schedule in schedules if schedule.levels is not None]
    results = _run([levels.within for levels in every], sources, reducer, rendezvous=rendezvous)
    blocks = [result[levels.lo : levels.hi] for levels, result in zip(every, results, strict=True)]
    combined = _run([levels.across for levels in every], blocks, reducer, rendezvous=rendezvous)
    for levels, block, values in zip(every, blocks, combined, strict=True):
        if levels.across is not None:
            block[:] = values
    return _run([levels.spread for levels in every], blocks, None, rendezvous=rendezvous)


def _run_round(
    rounds: Sequence[Round | None],
    sources: Sequence[Array],
    results: Sequence[Array],
    reducer: Reducer | None,
    *,
    rendezvous: bool,
) -> None:
    rows: list[Array] = [
        np.zeros(0 if one is None else one.row * one.gather.world_size, source.dtype)
        for one, source in zip(rounds, sources, strict=True)
    ]
    gathers = _idle([None if one is None else one.gather for one in rounds])
    spreads = _idle([None if one is None else one.spread for one in rounds])
    _run_steps(gathers, sources, rows, None, rendezvous=rendezvous)
    _run_steps(spreads, results, results, None, rendezvous=rendezvous)
    with np.errstate(all="ignore"):
        for one, source, brought, result in zip(rounds, sources, rows, results, strict=True):
            if one is not None and reducer is not None:
                reducer.fold(one.operands(source, brought), result[one.lo : one.hi])


def _run_steps(
    schedules: Sequence[Schedule],
    sources: Sequence[Array],
    results: Sequence[Array],
    reducer: Reducer | None,
    *,
    rendezvous: bool,
) -> None:
    given = zip(schedules, sources, results, strict=True)
    ranks = [_Rank(*one, {rank}) for rank, one in enumerate(given)]
    _Network(ranks, reducer, rendezvous).run()


def _idle(parts: _Parts) -> list[Schedule]:
    """The parts, and one without steps for each rank that has none."""
    nothing = (Kind.ALLREDUCE, Algorithm.DIRECT, len(parts))
    return [
        Schedule(*nothing, rank, 0, 0, ()) if part is None else part
        for rank, part in enumerate(parts)
    ]
