"""The launcher's view of a tracker that is elsewhere."""

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import trio
import trio.testing

from ftcomm.config.environment import read_token
from ftcomm.config.job_settings import MIN_DETECT_WITHIN_S
from ftcomm.errors import AuthenticationError, ProtocolError, TrackerLostError
from ftcomm.protocol.codec import Decoder, encode
from ftcomm.protocol.handshake import NONCE_BYTES, ServerHandshake
from ftcomm.protocol.messages import Closed, ControlMessage, Revoke, Welcome
from ftcomm.protocol.operator_messages import (
    DeathNotice,
    GivenUpNotice,
    LivenessAssertion,
    StopRequest,
    WorkerStatusReply,
    WorkerStatusRequest,
)
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.events import Died, GivenUp, JobEnded, Supervised
from ftcomm_tracker.core.rebuild.decision import Rebuild
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.core.standby.watch import Standby
from ftcomm_tracker.launcher import remote_tracker
from ftcomm_tracker.launcher.remote_tracker import RemoteJob
from ftcomm_tracker.server.connections.authentication import receive_exactly
from ftcomm_tracker.server.open_job import OpenJob, ServeOptions, open_job
from tests.unit.tracker.harness import client, hello, tracker
from tests.unit.tracker.roster_scenario import report

pytestmark = pytest.mark.trio


@contextlib.asynccontextmanager
async def remote(job: OpenJob, worker_id: str = "0") -> AsyncIterator[RemoteJob]:
    """A supervisor's view of worker `worker_id`, kept up for as long as the block runs."""
    token = read_token(job.token_file)
    found = RemoteJob([job.server.address], token, worker_id, patience_s=30)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.run)
        yield found
        nursery.cancel_scope.cancel()


async def test_it_knows_what_the_tracker_knows(tmp_path: Path) -> None:
    async with (
        tracker(tmp_path, detect_within=3) as job,
        client(job) as worker,
        remote(job) as view,
    ):
        await view.catch_up()
        assert (view.is_connected("0"), view.summary()) == (False, "forming")
        await worker.send(hello("0"))
        await worker.receive_a(Welcome)
        await view.catch_up()
        assert view.is_connected("0")
        assert not view.has_closed("0")
        assert (view.detect_within_s, view.progress()) == (3.0, Position(0, -1, 0))
        assert not view.over.is_set()


async def test_before_it_knows_the_job_it_looks_as_often_as_any_job_wants() -> None:
    nobody = RemoteJob([("127.0.0.1", 1)], b"token", "0", patience_s=1)
    assert nobody.detect_within_s == MIN_DETECT_WITHIN_S


def answer(attempt: int, generation: int) -> WorkerStatusReply:
    return WorkerStatusReply(
        1, False, False, False, START, "RUNNING", 1, 5000, False, "", "", generation, "", 0, attempt
    )


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([(0, 1), (0, 2)], id="restarted"),
        pytest.param([(1, 3), (2, 1)], id="a new tracker has the store alone"),
        pytest.param([(1, 3), (0, 1), (2, 1)], id="it has yet to begin its attempt"),
    ],
)
async def test_the_next_tracker_is_heard(answers: list[tuple[int, int]]) -> None:
    view = RemoteJob([("127.0.0.1", 1)], b"token", "0", patience_s=1)
    for each in answers:
        view._hear(answer(*each))
    assert view.attempt == answers[-1][0]


@pytest.mark.parametrize("answers", [[(0, 2), (0, 1)], [(2, 1), (1, 3)], [(1, 3), (0, 1), (1, 2)]])
async def test_a_tracker_that_was_replaced_is_refused(answers: list[tuple[int, int]]) -> None:
    view = RemoteJob([("127.0.0.1", 1)], b"token", "0", patience_s=1)
    *before, late = answers
    for each in before:
        view._hear(answer(*each))
    with pytest.raises(ProtocolError, match="a newer one has replaced"):
        view._hear(answer(*late))


async def test_the_tracker_learns_which_process_has_not_called_init(tmp_path: Path) -> None:
    async with tracker(tmp_path, detect_within=600) as job, remote(job) as view:
        view.post(Supervised("0", "node7", 4711, 5.0))
        await view.catch_up()
        (row,) = job.server.snapshot()["missing"]["workers"][:1]
        assert (row["worker_id"], row["was_here"]) == ("0", False)
        assert (row["starting"]["pid"], row["starting"]["host"]) == (4711, "node7")
        assert row["starting"]["age_s"] >= 5
        view.post(Supervised("0", "node7", 0, 0.0))
        await view.catch_up()
        assert job.server.snapshot()["missing"]["workers"][0]["starting"] is None


async def test_it_is_told_unasked_how_the_job_ended(tmp_path: Path) -> None:
    # Its own next question would come after `detect_within`.
    async with tracker(tmp_path, detect_within=600) as job, remote(job) as view:
        await view.catch_up()
        async with client(job, "operator") as operator:
            await operator.send(StopRequest("enough"))
            await view.over.wait()
    assert view.outcome == JobEnded(False, "JobStoppedError", "the job was stopped: enough")


async def test_a_worker_given_up_while_the_tracker_was_away_is_told_to_the_next_one(
    tmp_path: Path,
) -> None:
    async with trio.open_nursery() as nursery:
        async with tracker(tmp_path) as job, client(job) as a, client(job) as b:
            for number, worker in enumerate((a, b)):
                await worker.send(hello(str(number)))
            for worker in (a, b):  # else the tracker would wait for their reports
                await worker.receive_a(Revoke)
                await worker.send(report(1))
            token = read_token(job.token_file)
            view = RemoteJob([job.server.address], token, "1", patience_s=30)
            nursery.start_soon(view.run)
            await view.catch_up()
        view.post(GivenUp("1", "it died of old age"))
        async with tracker(tmp_path):
            await view.over.wait()
    assert view.outcome == JobEnded(False, "RankLostError", "it died of old age")


async def test_while_no_tracker_answers_it_says_so_after_seconds_and_each_minute(
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refuse(*_: object) -> NoReturn:
        raise ConnectionRefusedError("refused")

    view = RemoteJob([("tracker", 4711)], b"", "0", patience_s=600)
    monkeypatch.setattr(view, "_one_connection", refuse)
    with caplog.at_level(logging.INFO, "ftcomm_tracker"), trio.move_on_after(150):
        await view.run()
    (line,) = set(caplog.messages)
    assert len(caplog.messages) == 3
    assert line.startswith("no tracker answers at tracker:4711 (refused); dialling on")


async def test_without_a_tracker_it_does_not_wait_for_ever(tmp_path: Path) -> None:
    async with tracker(tmp_path) as job:
        address, token = job.server.address, read_token(job.token_file)
    view = RemoteJob([address], token, "0", patience_s=0)
    with pytest.raises(TrackerLostError, match="whether worker 0 has closed is not known"):
        await view.catch_up()


async def test_a_tracker_that_is_about_to_begin_an_attempt_is_waited_for(
    mock_clock: trio.testing.MockClock,
) -> None:
    """It reads a checkpoint of any size first, and says meanwhile that it is there."""
    view = RemoteJob([("tracker", 4711)], b"", "0", patience_s=10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(view.catch_up)
        for _ in range(6):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(6)
            await trio.testing.wait_all_tasks_blocked()
            view._hear(replace(answer(1, 1), number=0))
        assert nursery.child_tasks
        view._hear(answer(2, 1))


async def test_a_unknown_peer_at_the_trackers_address_does_not_end_the_supervisor(
    tmp_path: Path,
) -> None:
    """The worker goes on dialling until its own tracker is back, and its supervisor must too."""
    async with trio.open_nursery() as nursery:
        async with tracker(tmp_path) as job:
            address, token = job.server.address, read_token(job.token_file)
            view = RemoteJob([address], token, "0", patience_s=30)
            nursery.start_soon(view.run)
            await view.catch_up()
        await refuse_two_callers(address)
        async with tracker(tmp_path):
            await view.catch_up()
        nursery.cancel_scope.cancel()


async def refuse_two_callers(address: tuple[str, int]) -> None:
    """Be somebody who speaks the protocol at `address` and has another token."""
    host, port = address
    (listener,) = await trio.open_tcp_listeners(port, host=host)
    async with listener:
        for _ in range(2):  # the second shows that the first was not the end
            async with await listener.accept() as stream:
                other = ServerHandshake(os.urandom(NONCE_BYTES))
                while other.request is None:
                    other.receive(await receive_exactly(stream, other.bytes_wanted))
                await stream.send_all(other.use_key(b"another key"))
                assert not await stream.receive_some(), (
                    "it proved itself to an unauthenticated peer"
                )


async def test_a_tracker_of_another_token_is_refused_at_the_first_call(tmp_path: Path) -> None:
    async with tracker(tmp_path) as job:
        view = RemoteJob([job.server.address], b"another token", "0", patience_s=30)
        with pytest.raises(AuthenticationError):
            await view.run()


async def test_of_a_worker_that_has_closed_only_the_jobs_end_is_unknown(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        async with tracker(tmp_path) as job, client(job) as a, client(job) as b:
            for number, worker in enumerate((a, b)):
                await worker.send(hello(str(number)))
            for worker in (a, b):  # else the tracker would wait for their reports
                await worker.receive_a(Revoke)
                await worker.send(report(1))
            await a.send(Closed(0))
            view = RemoteJob([job.server.address], read_token(job.token_file), "0", patience_s=0)
            nursery.start_soon(view.run)
            while not view.has_closed("0"):
                await trio.testing.wait_all_tasks_blocked(0.01)
        with pytest.raises(TrackerLostError, match="worker 0 has closed; how the job ended is not"):
            await view.catch_up()
        nursery.cancel_scope.cancel()


class Line:
    """A connection to a tracker that answers the first question, and then hangs up or is silent."""

    def __init__(self, take: Callable[[ControlMessage], None], *, hangs_up: bool = False) -> None:
        self._take = take
        self._decoder = Decoder()
        self._asked = trio.Event()
        self._answers = iter([encode(answer(0, 1)), *([b""] if hangs_up else [])])

    async def send_all(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            self._take(message)
            if isinstance(message, WorkerStatusRequest):
                self._asked.set()

    async def receive_some(self) -> bytes:
        await self._asked.wait()
        for data in self._answers:
            return data
        await trio.sleep_forever()
        raise AssertionError


def dead(number: int) -> Died:
    return Died("0", 4711 + number, "was killed by SIGKILL")


async def deaths_told(monkeypatch: pytest.MonkeyPatch, view: RemoteJob, count: int) -> list[int]:
    """Deaths that a tracker hears of; the first connection breaks while it takes the first one."""
    told: list[int] = []
    enough = trio.Event()
    broken = iter([True])

    def take(message: ControlMessage) -> None:
        if not isinstance(message, DeathNotice):
            return
        if next(broken, False):
            raise trio.BrokenResourceError
        told.append(message.pid - 4711)
        if len(told) == count:
            enough.set()
        if told == [0]:
            view.post(dead(1))
            view.post(dead(2))

    @contextlib.asynccontextmanager
    async def open_line(*_: object) -> AsyncIterator[Line]:
        yield Line(take)

    monkeypatch.setattr(remote_tracker, "open_operator", open_line)
    view.post(dead(0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(view.run)
        await enough.wait()
        nursery.cancel_scope.cancel()
    return told


async def test_a_death_that_a_broken_connection_took_is_told_on_the_next_one(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = RemoteJob([("tracker", 4711)], b"", "0", patience_s=600)
    with trio.fail_after(60):
        assert await deaths_told(monkeypatch, view, 3) == [0, 1, 2]


async def test_deaths_that_push_out_the_one_being_told_are_told(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_tracker, "MAX_DEATHS", 2)
    view = RemoteJob([("tracker", 4711)], b"", "0", patience_s=600)
    with trio.fail_after(60):
        assert await deaths_told(monkeypatch, view, 3) == [0, 1, 2]


async def test_each_new_connection_is_tried_with_the_first_tracker_first(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one leads at most for as long as the first is away."""
    dialled: list[str] = []
    enough = trio.Event()

    @contextlib.asynccontextmanager
    async def open_line(route: tuple[str, int], _: object) -> AsyncIterator[Line]:
        dialled.append(route[0])
        if len(dialled) == 1:
            raise ConnectionRefusedError("refused")
        if len(dialled) == 5:
            enough.set()
        yield Line(lambda _: None, hangs_up=True)

    monkeypatch.setattr(remote_tracker, "open_operator", open_line)
    view = RemoteJob([("first", 1), ("second", 2)], b"", "0", patience_s=600)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(view.run)
        await enough.wait()
        nursery.cancel_scope.cancel()
    assert dialled == ["first", "second", "first", "first", "first"]


async def test_a_tracker_that_hangs_up_unasked_is_told_nothing_and_the_next_one_is_dialled(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits beside the one that leads: what it was told would be lost."""
    told: dict[str, list[ControlMessage]] = {"waits": [], "leads": []}
    death = trio.Event()

    class Silent(Line):
        async def receive_some(self) -> bytes:
            await trio.testing.wait_all_tasks_blocked()
            return b""

    @contextlib.asynccontextmanager
    async def open_line(route: tuple[str, int], _: object) -> AsyncIterator[Line]:
        def take(message: ControlMessage) -> None:
            told[route[0]].append(message)
            if isinstance(message, DeathNotice):
                death.set()

        yield (Silent if route[0] == "waits" else Line)(take)

    monkeypatch.setattr(remote_tracker, "open_operator", open_line)
    view = RemoteJob([("waits", 1), ("leads", 2)], b"", "0", patience_s=600)
    view.post(dead(0))
    view.post(GivenUp("0", "it died of old age"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(view.run)
        await death.wait()
        nursery.cancel_scope.cancel()
    assert {type(each) for each in told["waits"]} == {WorkerStatusRequest}
    assert {type(each) for each in told["leads"]} >= {DeathNotice, GivenUpNotice}


@contextlib.asynccontextmanager
async def waiting_tracker(
    state_dir: Path, token_file: Path
) -> AsyncIterator[tuple[OpenJob, Standby]]:
    """A tracker that waits beside another one, and has not read the store yet."""
    job = await open_job(ServeOptions(2, state_dir=state_dir, token_file=token_file))
    now = trio.current_time()
    standby = Standby(now)
    rebuild = Rebuild(b"waits", 2, standby=standby)
    job.server._loop.roster = Roster(
        job.settings, job.durable, generation=9, now=now, tracker=b"waits", rebuild=rebuild
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(job.server.run)
        yield job, standby
        nursery.cancel_scope.cancel()
    job.journal.close()


async def test_of_two_trackers_a_supervisor_comes_back_to_the_one_that_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_dialled = trio.Event()
    faults = SimpleNamespace(accepted=is_dialled.set, performed=lambda _: None)
    async with tracker(tmp_path / "first") as job:
        first, file = job.server.address, job.token_file
    async with (
        waiting_tracker(tmp_path / "second", file) as (waits, _),
        trio.open_nursery() as nursery,
    ):
        monkeypatch.setattr(waits.server, "faults", faults)
        view = RemoteJob([first, waits.server.address], read_token(file), "0", patience_s=30)
        async with tracker(tmp_path / "first"):
            nursery.start_soon(view.run)
            await view.catch_up()
        await is_dialled.wait()
        async with tracker(tmp_path / "first"):
            await view.catch_up()
            assert view.summary() == "forming"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "message",
    [
        WorkerStatusRequest(1, "0", "host", 0, 0),
        LivenessAssertion("0"),
        GivenUpNotice("0", "old age", False),
        DeathNotice("0", 4711, "was killed by SIGKILL"),
    ],
    ids=lambda message: type(message).__name__,
)
async def test_a_tracker_that_waits_beside_another_hears_no_supervisor(
    tmp_path: Path, message: ControlMessage
) -> None:
    """Once the other one is silent it does: with all workers lost, only supervisors would call."""
    async with tracker(tmp_path / "first") as job:
        file = job.token_file
    async with waiting_tracker(tmp_path / "second", file) as (waits, standby):
        async with client(waits, "operator") as supervisor:
            await supervisor.send(message)
            assert await supervisor.receive() is None
        rebuild = waits.server._roster.rebuild
        assert rebuild is not None
        assert not rebuild.later
        standby.is_silent = True
        async with client(waits, "operator") as supervisor:
            await supervisor.send(message)
            assert await supervisor.receive() is not None
