"""Setup of an epoch's segment through the lowest rank of a host: all use it, or none does."""

import array
import logging
import os
import platform
import socket
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from ftcomm.config.job_settings import JobSettings
from ftcomm.control.driver import EpochScopes
from ftcomm.control.hub import Hub
from ftcomm.control.links import segment_setup
from ftcomm.control.links.dial import BROKEN
from ftcomm.control.links.segment_setup import (
    SegmentSetup,
    receive_sharing,
    receive_with,
    send_with,
    sharing_ranks,
)
from ftcomm.control.message_stream import send_message
from ftcomm.core import which
from ftcomm.errors import ProtocolError
from ftcomm.protocol.codec import encode
from ftcomm.protocol.link_messages import Relayed, Sharing
from ftcomm.recovery.events import LinkDown
from ftcomm.recovery.machine import WorkerState
from ftcomm.transport.shm_segment import NoSharedMemory
from ftcomm.transport.waker import Waker
from tests.helpers.descriptors import open_descriptors

pytestmark = [
    pytest.mark.trio,
    pytest.mark.skipif(which()[0] == "none", reason=f"no core: {which()[1]}"),
]
EPOCH = 7
Answer = Callable[[trio.socket.SocketType], Awaitable[None]]


class Rank:
    """As much of a worker as its segment needs."""

    def __init__(self, nursery: trio.Nursery, rank: int, hosts: str = "hhh") -> None:
        members = tuple(SimpleNamespace(host=host, present=True) for host in hosts)
        view = SimpleNamespace(
            rank=rank,
            epoch=EPOCH,
            is_live=True,
            state=WorkerState.RUNNING,
            members=members,
            routes=(),
            relay_to=lambda _: None,
        )
        self.hub: Any = Hub.__new__(Hub)
        self.hub.core = SimpleNamespace(view=view)
        self.hub.settings = JobSettings(detect_within=1)
        self.hub.lock, self.hub.wake = threading.Lock(), Waker()
        self.hub.faults = self.hub.segment = None
        self.hub.links, self.hub.recovered = {}, SimpleNamespace(links={})
        self.hub.causes_told, self.hub.control_sockets = set(), set()
        self.hub.log = logging.getLogger("ftcomm.test_segments")
        self.applied: list[Any] = []
        self.driver: Any = SimpleNamespace(
            hub=self.hub,
            nursery=nursery,
            epoch_scopes=EpochScopes(),
            changed=trio.Event(),
            apply=self.applied.append,
            wake_tasks=lambda: None,
        )
        self.setup = SegmentSetup(self.driver)

    @property
    def core(self) -> Any:
        """Of the segment; None where links are used."""
        assert self.hub.segment.epoch == EPOCH
        return self.hub.segment.core


async def come_together(
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[list[Rank]], None] = lambda _: None,
    hosts: str = "hhh",
) -> list[Rank]:
    """All ranks set up; proven Unix sockets to rank 0 are taken as given."""
    ranks: list[Rank] = []
    async with trio.open_nursery() as nursery:
        ranks += [Rank(nursery, rank, hosts) for rank in range(len(hosts))]
        change(ranks)

        async def open_direct(
            driver: Any, epoch: int, rank: int, role: str, *, to_rank: int
        ) -> trio.socket.SocketType:
            own = driver.hub.core.view.rank
            assert (epoch, rank, role, to_rank) == (EPOCH, hosts.index(hosts[own]), "segment", rank)
            near, far = trio.socket.socketpair()
            nursery.start_soon(_serve, ranks[rank], far, own)
            return near

        monkeypatch.setattr(segment_setup, "open_direct", open_direct)
        with trio.fail_after(30):
            async with trio.open_nursery() as setups:
                for rank in ranks:
                    setups.start_soon(rank.setup._share, EPOCH)
    for rank in ranks:
        rank.hub.wake.close()
    return ranks


async def _serve(leader: Rank, sock: trio.socket.SocketType, rank: int) -> None:
    with sock:
        context: Any = SimpleNamespace(epoch=EPOCH, from_rank=rank)
        await leader.setup.serve(leader.driver, sock, context)


@pytest.mark.parametrize(
    ("hosts", "group", "letters"), [("hhh", (0, 1, 2), b"ABC"), ("ghgh", (1, 3), b"BD")]
)
async def test_the_ranks_of_a_host_share_the_segment_that_the_lowest_makes(
    hosts: str, group: tuple[int, ...], letters: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_descriptors()
    everybody = await come_together(monkeypatch, hosts=hosts)
    ranks = [everybody[rank] for rank in group]
    assert {rank.hub.segment.ranks for rank in ranks} == {group}
    forms = [rank.core.form(bytes(72), None, None, 1) for rank in ranks]
    outs = [bytearray(len(ranks)) for _ in ranks]
    runs = [
        threading.Thread(target=form.run, args=(bytes([65 + rank]), out, EPOCH, 0, 0, 0, 0))
        for rank, form, out in zip(group, forms, outs, strict=True)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join(30)
    assert outs == [letters] * len(group)
    assert open_descriptors() == before + len(hosts), "a mapping has a descriptor"
    ranks.clear()
    everybody.clear()
    del forms, runs, run
    assert open_descriptors() == before


def _no_room(*_: object) -> int:
    raise NoSharedMemory("no room")


@pytest.mark.parametrize("patched", ["make_segment", "map_segment"])
async def test_where_one_rank_cannot_none_has_a_segment_and_one_rank_warns(
    patched: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = open_descriptors()
    monkeypatch.setattr(segment_setup, patched, _no_room)
    ranks = await come_together(monkeypatch)
    assert [rank.core for rank in ranks] == [None] * 3
    levels = [record.levelname for record in caplog.records if "no room" in record.getMessage()]
    assert sorted(levels) == ["INFO", "INFO", "WARNING"]
    ranks.clear()
    assert open_descriptors() == before


async def test_a_rank_that_cannot_map_it_keeps_all_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mapped: list[Any] = []
    map_segment = segment_setup.map_segment

    def map_one_less(fd: int, nbytes: int) -> Any:
        if len(mapped) == 2:
            raise NoSharedMemory("mapping was refused")
        mapped.append(map_segment(fd, nbytes))
        return mapped[-1]

    monkeypatch.setattr(segment_setup, "map_segment", map_one_less)
    ranks = await come_together(monkeypatch)
    assert [rank.core for rank in ranks] == [None] * 3
    assert "calls here go over sockets: rank " in caplog.text
    assert "mapping was refused" in caplog.text


async def test_other_processors_have_none_and_say_so_without_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    await come_together(monkeypatch)
    assert "processors of type aarch64" in caplog.text
    assert {record.levelname for record in caplog.records} == {"INFO"}


@pytest.mark.parametrize("planned", [0, 2])
async def test_a_planned_fault_of_links_has_calls_go_over_them(
    planned: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def plan(ranks: list[Rank]) -> None:
        for rank in ranks:
            rank.hub.faults = SimpleNamespace(needs_links=rank is ranks[planned])

    ranks = await come_together(monkeypatch, plan)
    assert [rank.core for rank in ranks] == [None] * 3
    assert "a fault of links is planned" in caplog.text
    assert {record.levelname for record in caplog.records} == {"INFO"}


async def test_a_rank_that_does_not_come_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    # The wait ends when nothing else can happen, however slow the machine: rank 1 has come.
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def stay_away(_: int) -> None:
        """It was stopped."""

    def one_is_away(ranks: list[Rank]) -> None:
        monkeypatch.setattr(ranks[2].setup, "_share", stay_away)

    caplog.set_level(logging.INFO)
    ranks = await come_together(monkeypatch, one_is_away)
    assert ranks[0].core is ranks[1].core is ranks[2].hub.segment is None
    assert "rank 2 did not come" in caplog.text
    assert autojump_clock.current_time() == ranks[0].hub.settings.detect_within


@pytest.mark.parametrize("hosts", ["fgh", "h", "h" * 65])
async def test_elsewhere_nobody_is_asked(hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = await come_together(monkeypatch, hosts=hosts)
    assert [rank.core for rank in ranks] == [None] * len(hosts)


@pytest.mark.parametrize(("rank", "caller"), [(1, 2), (0, 3), (0, 0)])
async def test_who_does_not_lead_or_is_elsewhere_gets_nothing(rank: int, caller: int) -> None:
    before = open_descriptors()
    async with trio.open_nursery() as nursery:
        asked = Rank(nursery, rank, "hhhg")
        near, far = trio.socket.socketpair()
        with trio.fail_after(10), near:
            await _serve(asked, far, caller)
            assert await near.recv(1) == b""
        asked.hub.wake.close()
    assert asked.setup._round is None
    assert open_descriptors() == before


async def test_whether_they_share_follows_from_what_all_ranks_know() -> None:
    async with trio.open_nursery() as nursery:
        rank = Rank(nursery, 1, "hhhg")
        view = rank.hub.core.view
        assert sharing_ranks(rank.hub) == (0, 1, 2)
        view.routes = (SimpleNamespace(a=1, b=3, via=2),)
        assert sharing_ranks(rank.hub) == (0, 1, 2)
        view.routes = (SimpleNamespace(a=1, b=2, via=3),)
        assert sharing_ranks(rank.hub) == ()
        view.routes, view.members[3].present = (), False
        assert sharing_ranks(rank.hub) == (0, 1, 2)
        view.members[2].present = False
        assert sharing_ranks(rank.hub) == ()
        rank = Rank(nursery, 1)
        rank.hub.settings = JobSettings(transport="tcp")
        assert sharing_ranks(rank.hub) == ()


async def _hang_up(sock: trio.socket.SocketType) -> None:
    """Rank 0 is gone before it has offered anything."""


async def _leave_undecided(sock: trio.socket.SocketType) -> None:
    await send_message(sock, Sharing(failure="no room"))
    await receive_sharing(sock)


async def _say_nonsense(sock: trio.socket.SocketType) -> None:
    await sock.send(b"\0\0\0\1\xc1")


async def _fail_with_a_descriptor(sock: trio.socket.SocketType) -> None:
    fd = os.memfd_create("test")
    await send_with(sock, Sharing(failure="no room"), fd)
    os.close(fd)
    await receive_sharing(sock)


@pytest.mark.parametrize(
    "answer", [_hang_up, _leave_undecided, _say_nonsense, _fail_with_a_descriptor]
)
async def test_without_the_decision_the_link_to_the_leader_is_down(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may use the segment, or not."""
    before = open_descriptors()
    async with trio.open_nursery() as nursery:
        rank = Rank(nursery, 1)

        async def answered(sock: trio.socket.SocketType) -> None:
            with sock:
                await answer(sock)

        async def open_direct(*_: object, **__: object) -> trio.socket.SocketType:
            near, far = trio.socket.socketpair()
            nursery.start_soon(answered, far)
            return near

        monkeypatch.setattr(segment_setup, "open_direct", open_direct)
        with trio.fail_after(30):
            await rank.setup._share(EPOCH)
    rank.hub.wake.close()
    (down,) = rank.applied
    assert isinstance(down, LinkDown)
    assert (down.epoch, down.rank) == (EPOCH, 0)
    assert rank.hub.segment is None
    assert open_descriptors() == before


async def test_what_is_decided_for_an_epoch_that_is_over_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def over(ranks: list[Rank]) -> None:
        open_core = segment_setup.open_core

        def open_late(memory: Any, size: int, rank: int) -> Any:
            if rank == 1:
                ranks[1].hub.core.view.epoch += 1
            return open_core(memory, size, rank)

        monkeypatch.setattr(segment_setup, "open_core", open_late)

    ranks = await come_together(monkeypatch, over)
    assert ranks[1].hub.segment is None
    assert ranks[0].core is not None


# --- what is said on the socket -----------------------------------------------------------------


class Liar:
    """One end of a conversation, spoken by hand."""

    def __init__(self) -> None:
        self.end, other = socket.socketpair()
        self.sock = trio.socket.from_stdlib_socket(other)

    def say(self, raw: bytes, *fds: int) -> None:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        self.end.sendmsg([raw], [rights] if fds else [])
        self.end.shutdown(socket.SHUT_WR)

    async def hear(self, receive: Callable[..., Any]) -> Any:
        with trio.fail_after(30), self.sock, self.end:
            return await receive(self.sock)


@pytest.mark.parametrize(
    "said",
    [b"", b"\0\0", encode(Sharing())[:-1], encode(Relayed()), b"\0\0\0\1\xc1", bytes(4)],
    ids=["silence", "half a length", "half a word", "something else", "no message", "nothing"],
)
@pytest.mark.parametrize("receive", [receive_sharing, receive_with])
async def test_what_is_no_word_on_memory_breaks_the_connection_and_keeps_no_descriptor(
    said: bytes, receive: Any
) -> None:
    before = open_descriptors()
    liar = Liar()
    fd = os.memfd_create("test")
    liar.say(said, *([fd] if said and receive is receive_with else []))
    os.close(fd)
    with pytest.raises(BROKEN):
        await liar.hear(receive)
    assert open_descriptors() == before


async def test_two_descriptors_are_one_too_many() -> None:
    before = open_descriptors()
    liar = Liar()
    fds = [os.memfd_create("test") for _ in range(2)]
    liar.say(encode(Sharing()), *fds)
    for fd in fds:
        os.close(fd)
    with pytest.raises(ProtocolError, match="2 descriptors"):
        await liar.hear(receive_with)
    assert open_descriptors() == before
