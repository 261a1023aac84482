"""Collectives over links that send every byte under a checksum."""

import functools
import itertools
import socket

import numpy as np
import pytest
import ranks_in_threads as harness

from ftcomm.collectives.reductions import make_reducer
from ftcomm.collectives.schedules.allgather import ring_allgather
from ftcomm.collectives.schedules.recursive_doubling import barrier, doubling_allreduce
from ftcomm.collectives.schedules.ring import ring_allreduce
from ftcomm.execution.executor import SMALL_BYTES
from ftcomm.protocol.checksum_records import HEAD_BYTES, MAX_RECORD_BYTES, xxh3_digest
from ftcomm.testing.in_memory import run_in_memory
from ftcomm.transport.checksum_link import CheckedLink
from ftcomm.transport.interruptions import LinkLost
from ftcomm.transport.socket_link import SocketLink

COUNTS = [0, 1, 7, SMALL_BYTES // 4, 200_003, 700_001]
# Through a small buffer: each of its fillings waits for another thread to run, on a busy machine
# for long.
FEW_BUFFERS = [0, 1, 7, SMALL_BYTES // 4, 20_003]
SUM = make_reducer("sum", np.dtype("f4"))


def check_all(ranks, noted=None):
    for rank in ranks:
        note = functools.partial([].append if noted is None else noted.append, rank.rank)
        rank.links = {at: CheckedLink(link, xxh3_digest, note) for at, link in rank.links.items()}


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("build", [ring_allreduce, doubling_allreduce])
@pytest.mark.parametrize(
    ("make_pair", "buffer_bytes", "counts"),
    [
        (socket.socketpair, None, COUNTS),
        (socket.socketpair, 4096, FEW_BUFFERS),
        (harness.tcp_pair, 65536, COUNTS),
    ],
    ids=["socketpair", "small buffer", "tcp"],
)
def test_results_have_the_bits_of_those_over_plain_links(n, build, make_pair, buffer_bytes, counts):
    with harness.group(n, make_pair, buffer_bytes) as ranks:
        check_all(ranks)
        for count in counts:
            rng = np.random.default_rng(count)
            sources = [rng.standard_normal(count).astype("f4") for _ in range(n)]
            schedules = [build(n, rank, count) for rank in range(n)]
            wanted = run_in_memory(schedules, sources, SUM)
            results = harness.together(
                *(
                    functools.partial(rank.run, schedule, sendbuf, SUM)
                    for rank, schedule, sendbuf in zip(ranks, schedules, sources, strict=True)
                )
            )
            assert [r.tobytes() for r in results] == [w.tobytes() for w in wanted]


@pytest.mark.parametrize("dtype", ["?", "i2", "f2", "f8", "c8", "c16"])
def test_elements_of_every_kind_are_bytes(dtype):
    with harness.group(2) as ranks:
        check_all(ranks)
        sources = [np.arange(9).astype(dtype) for _ in ranks]
        schedules = [ring_allgather(2, rank, 9) for rank in (0, 1)]
        results = harness.together(
            *(
                functools.partial(rank.run, schedule, sendbuf)
                for rank, schedule, sendbuf in zip(ranks, schedules, sources, strict=True)
            )
        )
        assert [r.tolist() for r in results] == [[*sources[0].tolist(), *sources[1].tolist()]] * 2


def test_nothing_is_left_behind_when_a_collective_ends():
    """A barrier behind an allreduce finds neither too much nor too little on the link."""
    with harness.group(2) as ranks:
        check_all(ranks)
        for count in itertools.islice(itertools.cycle([0, 70_000]), 6):
            schedules = [
                barrier(2, r) if not count else ring_allreduce(2, r, count) for r in (0, 1)
            ]
            results = harness.together(
                *(
                    functools.partial(
                        rank.run, schedule, np.ones(count, "f4"), SUM if count else None
                    )
                    for rank, schedule in zip(ranks, schedules, strict=True)
                )
            )
            assert [len(result) for result in results] == [count, count]


class Flipped:
    """A link on which one bit of what arrives is another one."""

    def __init__(self, link, place):
        self.link, self.rank, self.place, self.seen = link, link.rank, place, 0

    def __getattr__(self, name):
        return getattr(self.link, name)

    def recv_into(self, buffer):
        count = self.link.recv_into(buffer)
        if self.seen <= self.place < self.seen + count:
            buffer[self.place - self.seen] ^= 4
        self.seen += count
        return count


@pytest.mark.parametrize(
    "place", [2, HEAD_BYTES + 40, HEAD_BYTES + 96 + 1000, MAX_RECORD_BYTES + 50]
)
def test_a_flipped_bit_anywhere_is_a_lost_link_that_names_the_peer(place):
    """Of a record's head, a signature (which would end the job), a payload, a later record."""
    count, noted = 100_000, []
    with harness.group(2) as ranks:
        ranks[0].links[1] = Flipped(ranks[0].links[1], place)
        check_all(ranks, noted)

        def receive():
            try:
                return ranks[0].run(doubling_allreduce(2, 0, count), np.ones(count, "f4"), SUM)
            finally:
                ranks[0].links[1].shutdown()

        lost, _ = harness.together(
            receive,
            lambda: ranks[1].run(doubling_allreduce(2, 1, count), np.ones(count, "f4"), SUM),
        )
    assert isinstance(lost, LinkLost)
    assert (lost.rank, noted) == (1, [0])
    assert "checksum of record" in lost.cause
    assert "does not match" in lost.cause


def test_a_peer_that_closes_within_a_record_has_closed():
    near, far = socket.socketpair()
    link = CheckedLink(SocketLink(near, 1), xxh3_digest, lambda: None)
    far.send(bytes(HEAD_BYTES - 1))
    far.close()
    assert link.recv_into(bytearray(10)) == 0
    link.close()


def test_what_has_arrived_is_not_slept_for():
    near, far = socket.socketpair()
    links = [CheckedLink(SocketLink(sock, 1), xxh3_digest, lambda: None) for sock in (near, far)]
    for text in (b"one", b"other"):
        assert links[0].sendmsg((text,), (), 0) == len(text)
    assert links[1].poll_for(reading=True, writing=False) != ()
    assert links[1].recv_into(bytearray(3)) == 3
    assert links[1].poll_for(reading=True, writing=False) == ()
    assert links[1].recv_into(bytearray(9)) == 5
    assert links[1].poll_for(reading=True, writing=False) != ()
    with pytest.raises(BlockingIOError):
        links[1].recv_into(bytearray(9))
    for link in links:
        link.close()
