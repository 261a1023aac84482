"""The tracker's driver under clients that are honest, silent, hostile or slow."""

import contextlib
import dataclasses
import errno
import json
from pathlib import Path

import pytest
import trio

from ftcomm.config.environment import read_token
from ftcomm.errors import AuthenticationError, ConfigError, ProtocolError
from ftcomm.protocol.field_types import MAX_CONTROL_FRAME
from ftcomm.protocol.handshake import MAGIC, NONCE_BYTES, ClientHandshake, control_key
from ftcomm.protocol.messages import (
    AskRoster,
    ControlMessage,
    FatalDecision,
    HeartbeatAck,
    Plan,
    Refused,
    Revoke,
    Welcome,
)
from ftcomm.protocol.operator_messages import Done, StatusReply, StatusRequest, StopRequest
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm_tracker.core.events import GivenUp, JobEnded, Joined, Tick
from ftcomm_tracker.core.reporting.status import table
from ftcomm_tracker.server import operators
from ftcomm_tracker.server.connections import authentication, connection
from ftcomm_tracker.server.journal import Journal, SupersededError
from ftcomm_tracker.server.open_job import OpenJob, ServeOptions, open_job
from tests.unit.tracker.harness import Client, client, heartbeat, hello, tracker
from tests.unit.tracker.roster_scenario import report
from tests.unit.tracker.test_rebuild import known, member

pytestmark = pytest.mark.trio


async def dial(job) -> trio.SocketStream:
    return await trio.open_tcp_stream(*job.server.address)


async def ends(stream: trio.SocketStream) -> bytes:
    """Everything until the tracker ends the connection."""
    data = b""
    try:
        while chunk := await stream.receive_some():
            data += chunk
    except trio.BrokenResourceError:
        pass
    return data


async def test_two_workers_join_and_form_the_group(tmp_path: Path) -> None:
    async with tracker(tmp_path) as job, client(job) as a, client(job) as b:
        await a.send(hello("0"))
        first = await a.receive()
        assert isinstance(first, Welcome)
        assert (first.job_id, first.incarnation, first.world_size) == (job.durable.job_id, 1, 2)
        await b.send(hello("1"))
        assert isinstance(await b.receive(), Welcome)
        assert isinstance(await a.receive(), Revoke)
        await a.send(heartbeat(7))
        assert await a.receive_a(HeartbeatAck) == HeartbeatAck(7)


async def test_a_wrong_token_is_refused_and_the_tracker_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="ftcomm_tracker")
    async with tracker(tmp_path) as job:
        with pytest.raises(AuthenticationError):
            async with client(job, key=b"x" * 32):
                raise AssertionError
        async with client(job) as honest:
            await honest.send(hello("0"))
            assert isinstance(await honest.receive(), Welcome)
    assert "it holds another token, or this tracker's proof did not reach it" in caplog.text


async def test_who_hung_up_while_the_tracker_was_stopped_is_not_said_to_hold_another_token(
    tmp_path: Path,
) -> None:
    """A worker dials, says who it is, and gives up before a stopped tracker reads that."""
    async with tracker(tmp_path) as job:
        key = control_key(read_token(job.token_file))
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        async with listener:
            address = listener.socket.getsockname()
            async with await trio.open_tcp_stream(*address) as worker:
                shake = ClientHandshake(key, role="worker", context=b"", nonce=bytes(NONCE_BYTES))
                await worker.send_all(shake.hello())
            async with await listener.accept() as stream:
                with pytest.raises(ProtocolError, match="this tracker was stopped"):
                    await authentication.authenticate(stream, key)


@pytest.mark.parametrize(
    "bytes_sent", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 1000, MAGIC + b"\x00\x63\x01\x00", b""]
)
async def test_unknown_peers_are_refused_and_the_tracker_goes_on(
    tmp_path: Path, bytes_sent: bytes
) -> None:
    async with tracker(tmp_path) as job:
        async with await dial(job) as stream:
            await stream.send_all(bytes_sent)
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_eof()
            # Only another version of us is told anything: what we are.
            told = await ends(stream)
            assert told[:4] == (MAGIC if bytes_sent.startswith(MAGIC) else b"")
        async with client(job) as honest:
            await honest.send(hello("0"))
            assert isinstance(await honest.receive(), Welcome)


async def test_a_probe_of_the_port_leaves_no_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As `doctor` without a token, or a balancer's health check."""
    caplog.set_level("INFO", logger="ftcomm_tracker")
    async with tracker(tmp_path) as job:
        for bytes_sent in (b"", b"GET"):
            async with await dial(job) as stream:
                await stream.send_all(bytes_sent)
                await stream.send_eof()
                await ends(stream)
    assert caplog.text.count("refused a connection") == 1


async def test_who_stays_silent_is_cut_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "HANDSHAKE_DEADLINE_S", 0.05)
    async with tracker(tmp_path) as job, await dial(job) as silent, client(job) as no_hello:
        assert await ends(silent) == b""
        assert await no_hello.receive() is None


async def test_the_oldest_unknown_peer_makes_room_for_an_honest_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "MAX_UNAUTHENTICATED", 4)
    monkeypatch.setattr(authentication, "HANDSHAKE_DEADLINE_S", 1000.0)
    async with tracker(tmp_path) as job:
        early = [await dial(job) for _ in range(4)]
        async with client(job) as honest:
            await honest.send(hello("0"))
            assert isinstance(await honest.receive(), Welcome)
            assert await ends(early[0]) == b""
        for stream in early:
            await stream.aclose()


async def test_garbage_after_the_handshake_costs_the_connection_only(tmp_path: Path) -> None:
    async with tracker(tmp_path) as job, client(job) as a, client(job) as b:
        await a.stream.send_all(b"\xff\xff\xff\xff")
        assert await a.receive() is None
        await b.send(hello("0"))
        assert isinstance(await b.receive(), Welcome)
        await b.stream.send_all(b"\x00\x00\x00\x01\xc1")
        assert await b.receive() is None


@pytest.mark.parametrize("role", ["worker", "operator", "data", "fetch"])
async def test_every_role_may_say_only_what_is_its_own(tmp_path: Path, role: str) -> None:
    wrong = {"worker": StatusRequest(), "operator": heartbeat(1)}.get(role, StatusRequest())
    async with tracker(tmp_path) as job, client(job, role) as peer:
        await peer.send(wrong)
        assert await peer.receive() is None


async def test_a_worker_may_not_say_hello_twice(tmp_path: Path) -> None:
    async with tracker(tmp_path) as job, client(job) as peer:
        await peer.send(hello("0"))
        assert isinstance(await peer.receive(), Welcome)
        await peer.send(hello("0"))
        assert await peer.receive() is None


async def test_a_lost_connection_revokes_the_epoch(tmp_path: Path) -> None:
    async with tracker(tmp_path) as job, client(job) as a:
        async with client(job) as b:
            await a.send(hello("0"))
            await b.send(hello("1"))
            assert isinstance(await b.receive_a(Revoke), Revoke)
        await a.send(heartbeat(1))
        await a.receive_a(HeartbeatAck)
        members = job.server.snapshot()["members"]
        assert [row["connected"] for row in members] == [True, False]


async def test_a_slow_reader_is_cut_and_the_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_QUEUED_BYTES", 300_000)
    monkeypatch.setattr(operators, "status_document", lambda snapshot: "x" * 200_000)
    async with tracker(tmp_path) as job, client(job, "operator") as slow, client(job) as other:
        with pytest.raises(trio.BrokenResourceError):
            await ask_without_listening(slow)
        await other.send(hello("1"))
        assert isinstance(await other.receive(), Welcome)


async def ask_without_listening(peer: Client) -> None:
    while True:
        await peer.send(StatusRequest())


async def test_an_operator_sees_the_status(tmp_path: Path) -> None:
    async with tracker(tmp_path) as job, client(job, "operator") as operator:
        await operator.send(StatusRequest())
        reply = await operator.receive()
        assert isinstance(reply, StatusReply)
        document = json.loads(reply.document)
        host, port = job.server.address
        assert (document["state"], document["address"]) == ("FORMING", f"{host}:{port}")
        assert "waiting for worker 1 to join" in table(document)


async def test_an_answer_that_cannot_be_sent_costs_its_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(operators, "status_document", lambda snapshot: "x" * MAX_CONTROL_FRAME)
    async with tracker(tmp_path) as job, client(job) as worker:
        async with client(job, "operator") as operator:
            await operator.send(StatusRequest())
            assert await operator.receive() is None
        await worker.send(hello("0"))
        assert isinstance(await worker.receive(), Welcome)
    assert "a StatusReply cannot be sent to" in caplog.text


async def test_an_operator_stops_the_job_for_everyone(tmp_path: Path) -> None:
    async with (
        tracker(tmp_path, 1) as job,
        client(job) as worker,
        client(job, "operator") as operator,
    ):
        await worker.send(hello("0"))
        await operator.send(StopRequest("enough"))
        assert await operator.receive() == Done()
        fatal_decision = await worker.receive_a(FatalDecision)
        assert (fatal_decision.error, "enough" in fatal_decision.cause) == ("JobStoppedError", True)
        assert job.server.over.is_set()
        await worker.stream.aclose()
        await job.server.ended.wait()
        assert job.server.outcome == JobEnded(False, "JobStoppedError", fatal_decision.cause)


async def heard(
    worker: Client, name: str, process: str, kind: type[ControlMessage]
) -> ControlMessage:
    """Join, and report for each epoch until a message of one kind comes."""
    await worker.send(hello(name, f"{process}{name}".encode().ljust(16, b".")))
    while not isinstance(message := await worker.receive(), kind):
        assert message is not None
        if isinstance(message, Revoke):
            await worker.send(report(message.epoch, caught_up=0))
    return message


async def of_a_group(
    job: OpenJob, process: str, kind: type[ControlMessage], second: Client | None = None
) -> ControlMessage:
    """Two workers come, hear that message and are killed, but for the `second`."""
    async with (
        client(job) as a,
        contextlib.nullcontext(second) if second else client(job) as b,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(heard, a, "0", process, kind)
        return await heard(b, "1", process, kind)


async def test_a_job_is_stopped_also_between_two_attempts(tmp_path: Path) -> None:
    """All is lost, and the tracker waits for the last one to hang up before it goes on."""
    async with (
        tracker(tmp_path, checkpoint=str(tmp_path / "store")) as job,
        client(job, "operator") as operator,
    ):
        await of_a_group(job, "first", Plan)
        async with client(job) as last:
            decision = await of_a_group(job, "second", FatalDecision, last)
            assert isinstance(decision, FatalDecision)
            assert decision.error == "RolledBackError"
            await operator.send(StopRequest("lunch"))
            assert await operator.receive() == Done()
            assert not job.server.over.is_set()
        await job.server.over.wait()
        outcome = job.server.outcome
        assert outcome == JobEnded(False, "JobStoppedError", "the job was stopped: lunch")


async def test_a_worker_that_is_given_up_ends_the_job_for_everyone(tmp_path: Path) -> None:
    async with tracker(tmp_path) as job, client(job) as worker:
        await worker.send(hello("0"))
        await worker.receive()
        job.server.post(GivenUp("1", "worker 1 died 3 times"))
        fatal_decision = await worker.receive_a(FatalDecision)
        assert (fatal_decision.error, fatal_decision.cause) == (
            "RankLostError",
            "worker 1 died 3 times",
        )


async def test_a_refused_worker_hears_why_although_it_is_still_sending(tmp_path: Path) -> None:
    async with tracker(tmp_path) as job, client(job) as first, client(job) as second:
        await first.send(hello("0"))
        await first.receive()
        await second.send(dataclasses.replace(hello("1"), tables=b"other tables"))
        for number in range(100):
            await second.send(heartbeat(number))
        assert isinstance(await second.receive(), Refused)


async def test_a_restarted_tracker_takes_the_same_address_token_and_job(tmp_path: Path) -> None:
    async with tracker(tmp_path) as job:
        before = (job.server.address, job.token_file.read_text(), job.durable.job_id)
    again = await open_job(ServeOptions(state_dir=tmp_path))
    try:
        assert before == (
            again.server.address,
            again.token_file.read_text(),
            again.durable.job_id,
        )
        assert again.journal.generation == 2
    finally:
        await again.server.close()


async def test_a_restored_job_refuses_other_settings(tmp_path: Path) -> None:
    async with tracker(tmp_path, detect_within=3.0):
        pass
    for options in (
        ServeOptions(5, state_dir=tmp_path),
        ServeOptions(state_dir=tmp_path, settings={"detect_within": 4.0}),
    ):
        with pytest.raises(ConfigError, match="was asked for"):
            await open_job(options)
    async with tracker(tmp_path, detect_within=3.0) as job:
        assert job.settings.detect_within == 3.0


async def test_a_superseded_tracker_ends(tmp_path: Path) -> None:
    job = await open_job(ServeOptions(2, state_dir=tmp_path))
    newer = Journal.open(tmp_path)
    with pytest.RaisesGroup(SupersededError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.server.run)
            async with client(job) as worker:
                await worker.send(hello("0"))
                await worker.receive()
                await trio.sleep_forever()  # until the server's error ends this block
    newer.close()
    job.journal.close()


async def test_its_own_stall_costs_nobody_his_place(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The clock jumps far beyond every deadline while the tracker has no turn."""
    async with tracker(tmp_path, n=1, detect_within=1.0) as job:
        worker = await joined_without_socket(job)
        autojump_clock.autojump_threshold = float("inf")
        autojump_clock.jump(60.0)
        await job.server.ask(Tick())
        assert [row["connected"] for row in job.server.snapshot()["members"]] == [True]
        assert worker


async def test_a_tracker_that_was_stopped_and_replaced_ends_before_it_hears_anything(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has nothing to write, so it would not notice, and go on speaking to the workers."""
    # the next look at the state directory, which would notice too, is not due
    monkeypatch.setattr("ftcomm_tracker.server.state_dir_watch.LOOK_S", 3600.0)
    job = await open_job(ServeOptions(1, state_dir=tmp_path))
    with pytest.RaisesGroup(SupersededError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.server.run)
            await joined_without_socket(job)
            Journal.open(tmp_path).close()
            autojump_clock.autojump_threshold = float("inf")
            autojump_clock.jump(60.0)
            await job.server.ask(Tick())
            nursery.cancel_scope.cancel()
    job.journal.close()


async def joined_without_socket(job) -> int:
    """A member whose connection needs no kernel, so that the clock may be a mock."""
    await job.server.ask(Joined(10_000, hello("0")))
    return 10_000


async def test_how_far_the_job_is_waits_for_the_reports_of_those_who_live(tmp_path: Path) -> None:
    """A launcher counts the deaths at one position; a heartbeat is half a second behind."""
    reached = Position(0, PRELUDE, 3)
    async with tracker(tmp_path) as job, client(job) as a:
        async with client(job) as b:
            for worker, name in ((a, "0"), (b, "1")):
                await worker.send(hello(name))
            for worker in (a, b):
                await worker.receive_a(Revoke)
                await worker.send(report(1))
            for worker in (a, b):
                await worker.receive_a(Plan)
        await a.receive_a(Revoke)
        known: list[Position] = []

        async def look() -> None:
            await job.server.catch_up()
            known.append(job.server.progress())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await a.send(report(2, reached, caught_up=1))
        assert known == [reached]


async def test_exhausted_file_descriptors_do_not_end_the_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tracker(tmp_path) as job:
        listener = job.server._connections._listener
        genuine = listener.accept
        failures = [OSError(errno.EMFILE, "too many open files")]

        async def accept() -> trio.SocketStream:
            if failures:
                raise failures.pop()
            return await genuine()

        monkeypatch.setattr(listener, "accept", accept)
        for name in ("0", "1"):
            async with client(job) as worker:
                await worker.send(hello(name))
                assert isinstance(await worker.receive(), Welcome)
        assert failures == []


async def test_the_job_that_workers_name_can_be_watched(tmp_path: Path) -> None:
    """A tracker without a journal; the list of jobs is written again then."""
    async with tracker(tmp_path, 3) as job, contextlib.AsyncExitStack() as stack:
        told: list[str] = []
        job.server.watch_job = lambda durable: told.append(durable.job_id)
        for rank in range(3):
            worker = await stack.enter_async_context(client(job))
            await worker.send(member(rank))
            await worker.receive_a(AskRoster)
            await worker.send(known())
        await worker.receive_a(Welcome)
        assert list(dict.fromkeys(told)) == [job.durable.job_id, "old"]
