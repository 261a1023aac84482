"""Schedules of all ranks of a collective, executed in one process: for tests and the simulator."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ftcomm.collectives.reductions import Array, Reducer
from ftcomm.collectives.schedules.schedule import (
    NOBODY,
    REDUCE_SEGMENT_BYTES,
    Reduce,
    Schedule,
    Step,
)


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
    network = _Network([], reducer, rendezvous)
    for schedule, sendbuf in zip(schedules, sources, strict=True):
        recvbuf = np.zeros(schedule.recvbuf_count, sendbuf.dtype)
        for copy in schedule.copies:
            length = copy.source_hi - copy.source_lo
            recvbuf[copy.work_lo : copy.work_lo + length] = sendbuf[copy.source_lo : copy.source_hi]
        network.ranks.append(_Rank(schedule, sendbuf, recvbuf, {schedule.rank}))
    network.run()
    if reducer is not None:
        for rank in network.ranks:
            reducer.finish(rank.recvbuf, rank.schedule.world_size)
    return [rank.recvbuf for rank in network.ranks]
