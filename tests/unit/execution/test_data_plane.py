"""A call that proves what came before to be stable ends with what proves it (rule R3)."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ftcomm.collectives import chunking
from ftcomm.collectives.schedules.schedule import Schedule
from ftcomm.collectives.selection import schedule_for
from ftcomm.config.environment import WorkerOptions
from ftcomm.control.hub import HostSegment, Hub
from ftcomm.engine.runs import cut_check
from ftcomm.engine.runs.checkpoint import CheckpointRuns
from ftcomm.engine.runs.cut_check import CutCheck
from ftcomm.execution.data_plane import DataPlane
from ftcomm.execution.header_check import CallHeader
from ftcomm.protocol.frame_header import make_suffix
from ftcomm.protocol.position import START
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.recovery.events import LinkDown
from ftcomm.recovery.machine import WorkerMachine
from ftcomm.recovery.states import Identity, MachineLimits
from ftcomm.requests.request import NOTHING, CheckpointPayload, CollectiveSpec, Request
from ftcomm.transport.pushback_link import UnreadLink
from ftcomm.transport.socket_link import SocketLink

SIGNATURE = Signature(Kind.BROADCAST, count=3).encode()
TURN = (1, START)
HEADER = CallHeader(*TURN, make_suffix(SIGNATURE, "t.py:1"))


class Noting(DataPlane):
    """Runs nothing: as rank 0, it notes which schedules it should run."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub, None)  # type: ignore[arg-type]  # asked only for links
        self.ran: list[tuple[int, Kind]] = []

    def run(self, schedule: Schedule, *_: Any, stage: int = 0) -> bool:
        self.ran.append((stage, schedule.kind))
        return True


@pytest.fixture
def hub() -> Iterator[Hub]:
    identity = Identity("0", b"n" * 16, "here", "127.0.0.1", 1)
    core = WorkerMachine(identity, MachineLimits(), now=0.0)
    core.view.rank, core.contact.world_size, core.view.keep_order = 0, 3, (0, 1, 2)
    core.progress.keep_local = lambda *_: True  # type: ignore[method-assign]  # what is kept is not the point
    hub = Hub(core, WorkerOptions(), b"")
    yield hub
    hub.close()


@pytest.fixture
def plane(hub: Hub) -> Noting:
    return Noting(hub)


def test_a_load_ends_with_a_barrier(plane: Noting) -> None:
    assert plane.broadcast_default(b"state", HEADER) == b"state"
    assert plane.ran == [(0, Kind.BROADCAST), (1, Kind.BROADCAST), (2, Kind.BARRIER)]


def test_what_a_root_deals_out_ends_with_a_barrier(plane: Noting) -> None:
    suffix = make_suffix(SIGNATURE, "t.py:1")
    form = CollectiveSpec(Kind.BROADCAST_OBJECT, SIGNATURE, "t.py:1", suffix, None, root=0)
    assert plane.execute(Request(form, np.arange(5, dtype=np.uint8)), TURN) is not None
    assert plane.ran == [(0, Kind.BROADCAST), (1, Kind.BROADCAST), (2, Kind.BARRIER)]


def test_local_states_are_held_by_all_their_holders_before_the_commit(plane: Noting) -> None:
    assert plane.copy_locals(b"mine", [4, 5, 6], HEADER)
    stages, kinds = zip(*plane.ran, strict=True)
    assert (stages, kinds[-1], Kind.BARRIER in kinds[:-1]) == ((3, 4, 5), Kind.BARRIER, False)


def test_a_header_that_was_read_for_a_call_that_was_cut_short_is_no_other_call_s(hub: Hub) -> None:
    """Its input could not be made; its link was of an epoch that is over now."""
    plane = DataPlane(hub, SimpleNamespace(driver=SimpleNamespace(act=lambda _: None)))  # type: ignore[arg-type]  # told of a lost link
    ends = [socket.socketpair() for _ in range(2)]
    before, now = (SocketLink(near, 1) for near, _ in ends)
    used: list[Any] = []
    plane._executor.run = lambda _, links, **rest: used.append(links[1])  # type: ignore[method-assign,assignment]  # notes its link
    plane._unread = UnreadLink(before, b"header")
    plane.cut_short(ValueError())
    hub.links = {1: now}
    barrier = schedule_for(Kind.BARRIER, 2, 0, 0, 1)
    assert plane.run(barrier, CallHeader(*TURN, b""), NOTHING, NOTHING)
    assert used == [now]
    for link, (_, far) in zip((before, now), ends, strict=True):
        link.close()
        far.close()


@pytest.mark.parametrize("flush", [False, True])
def test_one_of_many_broadcasts_ends_with_a_barrier(plane: Noting, flush: bool) -> None:
    dtype = np.dtype("f4")
    schedule = schedule_for(Kind.BROADCAST, 3, 0, 3, dtype.itemsize, root=0)
    suffix = make_suffix(SIGNATURE, "t.py:1")
    form = CollectiveSpec(
        Kind.BROADCAST, SIGNATURE, "t.py:1", suffix, schedule, dtype, (3,), 3, 12, root=0
    )
    call = Request(form, np.arange(3, dtype=dtype), flush=flush)
    assert plane.execute(call, TURN) is not None
    assert plane.ran == [(0, Kind.BROADCAST), *([(1, Kind.BARRIER)] * flush)]


# --- sizes that others tell -----------------------------------------------------------------------


@pytest.mark.parametrize("has_threads", [False, True])
def test_steps_grow_through_a_checkpoint_though_balances_are_exchanged_twice(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, has_threads: bool
) -> None:
    """A rank in an earlier step than another seems to wait for what that one has sent."""
    # Not those of this process: idle ones of earlier tests may be left.
    monkeypatch.setattr(cut_check, "_has_other_threads", lambda: has_threads)
    monkeypatch.setattr(hub.core.view, "allows_completion", lambda epoch: epoch == TURN[0])
    unused: Any = None
    monkeypatch.setattr(hub, "links", {1: unused, 2: unused})
    plane = DataPlane(hub, unused)
    bases: list[int] = []

    def run(schedule: Schedule, _: Any, **given: Any) -> None:
        bases.append(given["step_base"])
        if schedule.kind is Kind.ALLGATHER:  # all ranks bring the same
            given["recvbuf"][:] = np.tile(given["sendbuf"], 3)

    plane._executor.run = run  # type: ignore[method-assign]  # over no links
    cut = CutCheck(hub, unused, plane, unused, unused)
    runs = CheckpointRuns(hub, plane, unused, cut, lambda _: None)
    saving = CheckpointPayload(b"state", bytes(16), b"mine")
    form = CollectiveSpec(Kind.CHECKPOINT, SIGNATURE, "t.py:1", HEADER.suffix, None)
    assert runs._agree(saving, form, HEADER) is False  # it is not marked
    assert len(bases) == 4 + has_threads
    assert bases == sorted(set(bases))


STATES = [np.random.default_rng(rank).bytes(nbytes) for rank, nbytes in enumerate((700, 0, 9001))]


class Told(Noting):
    """One of a group whose other ranks tell sizes, and send `states`; what is missing breaks it."""

    told = 0
    states = STATES

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self.kept: dict[int, bytes] = {}
        self.suspected: list[LinkDown] = []
        self.largest = 0
        self._sent = [0, 0, 0]
        self._control: Any = SimpleNamespace(driver=SimpleNamespace(act=self.suspected.append))
        self._core.progress.keep_local = self._keep  # type: ignore[method-assign]  # noted

    def _keep(self, _epoch: int, _version: int, rank: int, value: bytes) -> bool:
        self.kept[rank] = value
        return True

    def run(self, schedule: Schedule, *given: Any, stage: int = 0) -> bool:
        _, _, recvbuf = given
        if schedule.kind is Kind.BROADCAST and stage == 0:
            recvbuf[:] = self.told
        elif schedule.kind is not Kind.BARRIER:
            self.largest = max(self.largest, recvbuf.nbytes)
            sender = schedule.steps[0].recv_from
            piece = slice(self._sent[sender], self._sent[sender] + recvbuf.nbytes)
            self._sent[sender] = piece.stop
            if piece.stop > len(self.states[sender]):
                return False
            recvbuf[:] = np.frombuffer(self.states[sender], np.uint8)[piece]
        return super().run(schedule, *given, stage=stage)


def test_local_states_come_in_pieces_and_are_whole(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunking, "FIRST_PIECE_BYTES", 100)
    plane = Told(hub)
    lengths = [len(state) for state in STATES]
    assert plane.copy_locals(STATES[0], lengths, HEADER)
    assert plane.kept == {1: STATES[1], 2: STATES[2]}
    assert plane.largest < 5000


def test_a_default_comes_in_pieces_and_is_whole(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "FIRST_PIECE_BYTES", 100)
    plane = Told(hub)
    hub.core.view.rank, plane.told, plane.states = 1, 9001, STATES[::-1]
    assert plane.broadcast_default(b"", HEADER) == STATES[2]
    stages = [stage for stage, _ in plane.ran]
    assert stages == list(range(len(stages)))
    assert plane.ran[-1][1] is Kind.BARRIER


GIB = 1 << 30


def test_what_is_announced_and_does_not_come_takes_no_memory(hub: Hub) -> None:
    plane = Told(hub)
    assert not plane.copy_locals(b"", [0, 0, 8 * GIB], HEADER)
    hub.core.view.rank, plane.told = 1, 8 * GIB
    assert plane.broadcast_default(b"", HEADER) is None
    assert plane.largest == chunking.FIRST_PIECE_BYTES


def test_who_announces_what_no_state_can_have_is_suspected(hub: Hub) -> None:
    plane, much = Told(hub), 2**64 - 1
    assert not plane.copy_locals(b"", [0, 0, much], HEADER)
    hub.core.view.rank, plane.told = 1, much
    assert plane.broadcast_default(b"", HEADER) is None
    cause = f"it announces a state of {much} bytes, the most is {1 << 40}"
    assert plane.suspected == [LinkDown(1, 2, cause), LinkDown(1, 0, cause)]
    assert plane.largest == 0


def test_the_ranks_of_this_host_decide_how_long_is_tried(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.core.view.grouping, hub.segment = (0, 0, 1), HostSegment(1)
    monkeypatch.setattr("ftcomm.execution.data_plane.spins_before_sleep", lambda ranks: 7 * ranks)
    links: dict[int, Any] = {}
    driver = SimpleNamespace(request_links=lambda *_: links.update({1: "a link", 2: "a link"}))
    plane = DataPlane(hub, SimpleNamespace(driver=driver))  # type: ignore[arg-type]  # asked only for links
    monkeypatch.setattr(plane, "_must_ask", lambda _: False)
    assert plane._ensure_links(schedule_for(Kind.BARRIER, 3, 0, 0, 1), links, 1)
    assert plane._executor.waiter.spins == 14


def test_scratch_that_is_given_back_is_taken_again(hub: Hub, plane: Noting) -> None:
    scratch = plane.take(1 << 18, np.dtype(np.float32))
    place = scratch.__array_interface__["data"]
    plane.give_back(scratch)
    again = plane.take(1 << 18, np.dtype(np.float32))
    assert (again.__array_interface__["data"], hub.pool.nbytes) == (place, 0)
