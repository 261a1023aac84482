"""Token holders that break the rules: each loses its own connection, and harms no other."""

import contextlib
import dataclasses
import struct
from pathlib import Path

import msgpack
import pytest

from ftcomm.protocol.codec import encode
from ftcomm.protocol.field_types import MAX_CONTROL_FRAME
from ftcomm.protocol.handshake import DataContext
from ftcomm.protocol.link_messages import FetchEnd, FetchRequest
from ftcomm.protocol.messages import (
    AllClosed,
    Closed,
    ControlMessage,
    FatalDecision,
    Fenced,
    Heartbeat,
    HeartbeatAck,
    Leave,
    Mismatch,
    Refused,
    Report,
    Revoke,
    Suspect,
    Welcome,
)
from ftcomm.protocol.operator_messages import StatusRequest, StopRequest
from ftcomm.protocol.position import START, Position, PositionRange
from tests.security.tracker_under_attack import (
    DOORS,
    STREAMS,
    AttackedJob,
    Caller,
    Door,
    descriptors,
    resident_mib,
    start_watched,
)

pytestmark = pytest.mark.process


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def nested(head: bytes) -> bytes:
    return framed((head * 2000).ljust(MAX_CONTROL_FRAME, b"\xc0"))


NOT_MESSAGES = {
    "a frame of 2**32-1": b"\xff\xff\xff\xff" + bytes(100),
    "a frame of 2**31-1": b"\x7f\xff\xff\xff" + bytes(100),
    "a frame one too long": struct.pack(">I", MAX_CONTROL_FRAME + 1) + bytes(100),
    "an empty frame": bytes(4),
    "an unknown type": framed(msgpack.packb([9999])),
    "a negative type": framed(msgpack.packb([-1])),
    "text for a type": framed(msgpack.packb(["Plan"])),
    "a map": framed(msgpack.packb({"type": 1})),
    "an extension": framed(msgpack.packb([msgpack.ExtType(1, b"x")])),
    "an array of 2**32-1": framed(b"\xdd\xff\xff\xff\xff"),
    "a map of 2**32-1": framed(b"\x92\x03\xdf\xff\xff\xff\xff"),
    "bytes of 2**32-1": framed(b"\x92\x03\xc6\xff\xff\xff\xff"),
    "nested 2000 deep": nested(b"\x91"),
    "nested huge arrays": nested(b"\xdd\x00\x03\x00\x00"),
    "fields of other kinds": framed(msgpack.packb([3, "x", 1.5, None, {}])),
    "a field too many": framed(msgpack.packb([6, 1, 1])),
    "a number too large": framed(msgpack.packb([6, 2**32])),
    "text that is no text": framed(b"\x92\x09\xa2\xff\xfe"),
    "more behind the end": framed(msgpack.packb([6, 1]) + b"\x01"),
}


@pytest.mark.parametrize("name", NOT_MESSAGES)
def test_what_is_no_message_ends_the_connection(door: Door, name: str) -> None:
    with door.enter() as caller:
        caller.say(NOT_MESSAGES[name])
        assert caller.until_end() == b""


WRONG_FIRST = {
    "tracker": [Heartbeat(1, 0, START), StatusRequest(), StopRequest("now"), AllClosed(1)],
    DOORS[1]: [FetchEnd(), Revoke(9, ""), StopRequest("now")],
}
WRONG_FIRST[DOORS[2]] = WRONG_FIRST[DOORS[1]]


def test_what_is_no_beginning_ends_the_connection(door: Door) -> None:
    for message in WRONG_FIRST[door.name]:
        with door.enter() as caller:
            caller.send(message)
            assert caller.until_end() == b""


def test_roles_of_the_other_kind_of_door_end_the_connection(door: Door) -> None:
    for role in ("data", "fetch") if door.name == "tracker" else ("worker", "operator"):
        with door.knock() as caller:
            handshake = door.greeting(role=role)
            caller.sock.sendall(handshake.hello())
            caller.hang_up()
            caller.until_end()


# --- the tracker --------------------------------------------------------------------------------

NOT_FOR_A_SPARE: list[ControlMessage] = [
    Report(9, Position(0, 7, 7), 7, -1, b"", (), -1, 9, (0,), b"", "", True),
    Suspect(1, (0, 1), "both"),
    Mismatch(1, START, b"s" * 40, "here", 0, START, b"t" * 40, "there"),
    Closed(99),
    Leave("LogLimitError: I say so", START),
]


def test_a_spare_speaks_for_no_rank(attacked_job: AttackedJob) -> None:
    with attacked_job.spare() as spare:
        for epoch in (attacked_job.epoch, attacked_job.epoch + 1):
            for message in NOT_FOR_A_SPARE:
                if "epoch" in {field.name for field in dataclasses.fields(message)}:
                    message = dataclasses.replace(message, epoch=epoch)
                spare.send(message)
        spare.until_end()
    attacked_job.must_be_unharmed("tracker")


@pytest.mark.parametrize(
    "message",
    [
        StopRequest("now"),
        StatusRequest(),
        AllClosed(1),
        FatalDecision("JobLostError", "says who", 1, START, 0),
        Revoke(99, "says who"),
        FetchRequest(1, -1, ()),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_worker_that_plays_tracker_or_operator_is_cut(
    attacked_job: AttackedJob, message: ControlMessage
) -> None:
    with attacked_job.spare() as spare:
        spare.send(message)
        assert spare.rest() == []
    attacked_job.must_be_unharmed("tracker")


def test_who_asks_to_stop_the_job_without_a_token_stops_nothing(attacked_job: AttackedJob) -> None:
    with attacked_job.doors["tracker"].knock() as caller:
        caller.sock.sendall(encode(StopRequest("now")))
        assert caller.until_end() == b""
    attacked_job.must_be_unharmed("tracker")


def test_of_two_processes_with_one_id_the_later_stays(attacked_job: AttackedJob) -> None:
    with attacked_job.spare("twin") as first, attacked_job.spare("twin") as second:
        assert isinstance(first.receive(), Fenced)
        assert first.rest() == []
        second.send(Heartbeat(1, 0, START))
        assert second.receive() == HeartbeatAck(1)
    attacked_job.must_be_unharmed("tracker")


def test_spares_without_end_are_refused_and_the_group_is_left_in_peace(
    attacked_job: AttackedJob,
) -> None:
    callers: list[Caller] = []
    answers = []
    for number in range(100):
        callers.append(attacked_job.doors["tracker"].enter())
        callers[-1].send(attacked_job.hello(f"flood-{number}"))
        answers.append(type(callers[-1].receive()))
    for caller in callers:
        caller.sock.close()
    assert set(answers) == {Welcome, Refused}
    attacked_job.must_be_unharmed("tracker")


def test_workers_of_another_setting_table_epoch_or_process_are_refused(
    attacked_job: AttackedJob,
) -> None:
    for changes in (
        {"asked": (("detect_within", "1.0"),)},
        {"asked": (("no such setting", "1"),)},
        {"plan_epoch": 2**32 - 1},
        {"revoke_epoch": 2**32 - 1},
        {"incarnation": 2**32 - 1},
    ):
        with attacked_job.doors["tracker"].enter() as caller:
            caller.send(attacked_job.hello("odd", **changes))
            assert isinstance(caller.receive(), Refused)
            assert caller.until_end() == b""
    with attacked_job.doors["tracker"].enter() as caller:
        caller.send(dataclasses.replace(attacked_job.hello("odd"), tables=b"another table"))
        assert isinstance(caller.receive(), Refused)
    attacked_job.must_be_unharmed("tracker")


def test_a_flood_of_valid_messages_is_answered_and_nobody_else_waits(
    attacked_job: AttackedJob,
) -> None:
    with attacked_job.spare() as spare:
        batch = b"".join(encode(Heartbeat(number, 0, START)) for number in range(1000))
        for _ in range(10):
            spare.sock.sendall(batch)
            attacked_job.honest_call("tracker")
            for _ in range(1000):
                assert isinstance(spare.receive(), HeartbeatAck)
    attacked_job.must_be_unharmed("tracker")


def test_who_asks_and_does_not_read_is_cut(attacked_job: AttackedJob) -> None:
    before = resident_mib(attacked_job.tracker.pid)
    with attacked_job.doors["tracker"].enter(role="operator") as caller:
        asked = encode(StatusRequest()) * 1000
        try:
            while True:
                caller.sock.sendall(asked)
        except ConnectionError:  # a timeout would be another error
            pass
    assert resident_mib(attacked_job.tracker.pid) - before < 64
    attacked_job.must_be_unharmed("tracker")


# --- a worker's data port -----------------------------------------------------------------------


@pytest.mark.parametrize("name", DOORS[1:])
def test_what_is_not_held_is_not_waited_for(attacked_job: AttackedJob, name: str) -> None:
    if name not in attacked_job.doors:
        pytest.skip("abstract Unix addresses: Linux alone has them")
    door, epoch = attacked_job.doors[name], attacked_job.epoch
    endless = PositionRange(5, 0, 2**32 - 1)
    for load, runs in (
        (7, ()),
        (-1, (endless,)),
        (-1, (endless,) * 4096),
        (-1, (PositionRange(0, 9, 3),)),
    ):
        with door.enter() as caller:
            caller.send(FetchRequest(epoch, load, runs))
            answer = caller.receive()
            assert isinstance(answer, FetchEnd)
            assert ("is not held here" in answer.missing) == (runs != (PositionRange(0, 9, 3),))
    for other in (0, epoch - 1, epoch + 1, 2**32 - 1):
        with door.enter() as caller:
            caller.send(FetchRequest(other, -1, ()))
            assert caller.until_end() == b""
    attacked_job.must_be_unharmed(name)


@pytest.mark.parametrize("name", DOORS[1:])
def test_a_second_link_of_a_pair_is_closed_and_the_first_works_on(
    attacked_job: AttackedJob, name: str
) -> None:
    if name not in attacked_job.doors:
        pytest.skip("abstract Unix addresses: Linux alone has them")
    attacked_job.step()
    with attacked_job.doors[name].enter(role="data") as caller:
        caller.say(b"\xff" * 100_000)
        assert caller.until_end() == b""
    attacked_job.must_be_unharmed(name)


def one_of_several(door: Door, attempt: int, stream: int, streams: int = STREAMS) -> Caller:
    """A connection that says it is one of a link's."""
    said = DataContext.decode(door.context)
    lie = dataclasses.replace(said, attempt=attempt, stream=stream, streams=streams)
    return door.enter(role="data", context=lie.encode())


def test_connections_that_make_no_link_are_closed_and_the_first_link_works_on(
    attacked_job: AttackedJob,
) -> None:
    door = attacked_job.doors[DOORS[1]]
    attacked_job.step()
    with contextlib.ExitStack() as held:

        def dial(*which: int) -> Caller:
            return held.enter_context(one_of_several(door, *which))

        for stream, streams in ((STREAMS, STREAMS), (0, 0), (0, 17)):  # no such stream
            with pytest.raises(ConnectionAbortedError):
                dial(1, stream, streams)
        assert dial(1, 0, STREAMS + 1).until_end() == b"", "not what the job has"
        first = dial(2, 0)
        assert dial(2, 0).until_end() == b"", "it is there already"
        assert dial(1, 1).until_end() == b"", "of an older attempt"
        second = dial(2, 1)
        later = dial(3, 1)
        assert [first.until_end(), second.until_end()] == [b"", b""], "a later attempt has begun"
        whole = [later, dial(3, 2), dial(3, 0)]
        assert [caller.until_end() for caller in whole] == [b""] * 3, "the pair has a link"
        assert dial(3, 1).until_end() == b"", "that attempt is over"
        for number in range(100):
            dial(100 + number, 0)
        assert descriptors(attacked_job.process_of(door.name)) < 60, (
            "one attempt is kept, the newest"
        )
    attacked_job.must_be_unharmed(door.name)


# --- everything together ------------------------------------------------------------------------


def test_all_of_it_leaves_no_descriptor_behind_and_little_memory(attacked_job: AttackedJob) -> None:
    """Measured over a round of attacks, after a first one has filled caches and pools."""
    processes = [attacked_job.process_of(name) for name in DOORS[:2]]
    a_round_of_attacks(attacked_job)
    before = [(descriptors(pid), resident_mib(pid)) for pid in processes]
    for _ in range(2):
        a_round_of_attacks(attacked_job)
    after = [(descriptors(pid), resident_mib(pid)) for pid in processes]
    for (files, memory), (files_after, memory_after) in zip(before, after, strict=True):
        assert files_after <= files + 1, "one may be on its way"
        assert memory_after - memory < 16


def a_round_of_attacks(attacked_job: AttackedJob) -> None:
    for name, door in attacked_job.doors.items():
        for raw in NOT_MESSAGES.values():
            with door.enter() as caller:
                caller.say(raw)
                caller.until_end()
        for _ in range(100):
            with door.knock() as caller:
                caller.sock.sendall(b"GET")
        attacked_job.must_be_unharmed(name)


SONGS = ("pickle", "marshal", "eval", "system")


@pytest.mark.parametrize("song", SONGS)
def test_the_watch_notices_what_is_forbidden(tmp_path: Path, song: str) -> None:
    watch = tmp_path / "watch"
    canary = start_watched(tmp_path / "log", watch, "canary", song)
    canary.communicate(timeout=60)
    assert {"eval": "exec"}.get(song, song) in watch.read_text()
