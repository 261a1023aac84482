"""Findings of `doctor` on this machine, and their text."""

import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from ftcomm.config.environment import WorkerOptions
from ftcomm.protocol.operator_messages import DialBack, DialedBack, LivenessAssertion
from ftcomm_tracker.operator import doctor
from ftcomm_tracker.operator.doctor import Check, check_machine, examine
from ftcomm_tracker.operator.machine_checks import reachable_addresses
from ftcomm_tracker.server.open_job import OpenJob
from ftcomm_tracker.server.operators import DIAL_WITHIN_S, MAX_AT_ONCE, DialBacks
from tests.unit.tracker.harness import client, tracker
from tests.unit.tracker.test_cli import invoke, serving  # noqa: F401 - a fixture is used by its name


def levels(found: list[Check]) -> dict[str, str]:
    return {check.name: check.level for check in found}


def options(job: OpenJob, **changes: object) -> WorkerOptions:
    given = WorkerOptions(routes=(job.server.address,), worker_id="0", token_file=job.token_file)
    return replace(given, **changes)


ALL_IS_WELL = dict.fromkeys(
    (
        *("versions", "core", "descriptors", "shared_memory", "results_memory", "addresses"),
        *("clock_service", "worker_id", "token_file"),
        *("resolve", "connect", "token", "tracker_version", "clock", "job"),
        *("listen", "dial_back", "advertise"),
    ),
    "ok",
)


@pytest.fixture
def good_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the local findings good, independent of the machine and its load."""
    monkeypatch.setattr(doctor, "DESCRIPTORS_FEW", 1)
    monkeypatch.setattr(doctor, "SHARED_MEMORY_SMALL", 0)
    monkeypatch.setattr(doctor, "ROUND_TRIP_LONG_S", 60.0)
    monkeypatch.setattr(doctor, "CLOCKS_APART_S", 60.0)
    monkeypatch.setattr(doctor, "memory_limit", lambda: 1 << 40)
    monkeypatch.setattr(doctor, "reachable_addresses", lambda: ["10.0.0.5"])
    monkeypatch.setattr(doctor, "is_clock_synchronised", lambda: True)


@pytest.mark.trio
@pytest.mark.usefixtures("good_machine")
async def test_all_is_well(tmp_path: Path) -> None:
    async with tracker(tmp_path) as job:
        assert levels(await examine(options(job))) == ALL_IS_WELL


@pytest.mark.trio
@pytest.mark.usefixtures("good_machine")
@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"advertise": "192.0.2.1"}, {"advertise": "warn"}),
        ({"bind": "0.0.0.0"}, {}),
        ({"worker_id": None}, {"worker_id": "warn"}),
    ],
)
async def test_what_a_worker_would_be_told_to_do(
    changes: dict[str, str], difference: dict[str, str], tmp_path: Path
) -> None:
    async with tracker(tmp_path) as job:
        found = levels(await examine(options(job, **changes)))
    assert found == ALL_IS_WELL | difference


@pytest.mark.trio
@pytest.mark.usefixtures("good_machine")
async def test_a_tracker_far_away_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ROUND_TRIP_LONG_S", -1.0)
    monkeypatch.setattr(doctor, "CLOCKS_APART_S", -60.0)
    async with tracker(tmp_path) as job:
        snapshot = job.server.snapshot
        monkeypatch.setattr(job.server, "snapshot", lambda: {**snapshot(), "version": "0.0.7"})
        found = await examine(options(job))
    far = dict.fromkeys(("connect", "tracker_version", "clock"), "warn")
    assert levels(found) == ALL_IS_WELL | far
    (version,) = (check.what for check in found if check.name == "tracker_version")
    assert version.startswith("the tracker is ftcomm 0.0.7, here it is ")


@pytest.mark.trio
@pytest.mark.usefixtures("good_machine")
async def test_a_port_that_the_tracker_may_not_dial_is_said(tmp_path: Path) -> None:
    async with tracker(tmp_path) as job:
        found = await examine(options(job, advertise="127.0.0.1:443"))
    wanted = ALL_IS_WELL | {"dial_back": "warn"}
    del wanted["advertise"]  # which address the tracker sees, its answer would say
    assert levels(found) == wanted
    (dialled,) = (check for check in found if check.name == "dial_back")
    assert "no port below 1024 is dialled back, and the others will dial 443" in dialled.what


@pytest.mark.trio
async def test_the_port_that_the_others_will_dial_is_tried(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{closed.getsockname()[1]}"
        async with tracker(tmp_path) as job:
            found = await examine(options(job, advertise=where))
    (dialled,) = (check for check in found if check.name == "dial_back")
    assert dialled.level == "fail"
    assert f"the tracker cannot reach {where}: " in dialled.what


@pytest.mark.trio
async def test_an_address_that_is_not_of_this_machine_cannot_be_listened_on(tmp_path: Path) -> None:
    async with tracker(tmp_path) as job:
        *_, last = await examine(options(job, bind="192.0.2.1"))
    assert (last.name, last.level, last.todo) == ("listen", "fail", "correct FTCOMM_BIND")


@pytest.mark.trio
async def test_a_wrong_token_is_found_at_the_tracker(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("ab" * 32)
    other.chmod(0o600)
    async with tracker(tmp_path / "state") as job:
        *_, last = await examine(options(job, token_file=other))
    assert (last.name, last.level) == ("token", "fail")
    assert "does not hold this job's token" in last.what


@pytest.mark.trio
async def test_an_open_token_file_is_found_here(tmp_path: Path) -> None:
    async with tracker(tmp_path) as job:
        job.token_file.chmod(0o644)
        found = await examine(options(job))
    assert (levels(found)["token_file"], found[-1].name) == ("fail", "connect")
    assert "chmod 600" in next(check.todo for check in found if check.name == "token_file")


@pytest.mark.trio
async def test_a_unknown_peer_at_the_trackers_port(tmp_path: Path) -> None:
    async def web_server(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, web_server, 0)
        port = listeners[0].socket.getsockname()[1]
        *_, last = await examine(WorkerOptions(routes=(("127.0.0.1", port),)))
        nursery.cancel_scope.cancel()
    assert (last.name, last.level) == ("token", "fail")
    assert "does not speak ftcomm" in last.what


@pytest.mark.trio
async def test_a_name_without_address_and_an_address_without_tracker() -> None:
    *_, last = await examine(WorkerOptions(routes=(("no-such-host.invalid", 4711),)))
    assert (last.name, last.level) == ("resolve", "fail")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        *_, last = await examine(WorkerOptions(routes=(free.getsockname(),)))
    assert (last.name, last.level) == ("connect", "fail")


@pytest.mark.trio
async def test_a_firewall_between_tracker_and_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tracker's connect is refused, as by a firewall that rejects."""

    async def refused(*_: object) -> str:
        return "Connection refused"

    async with tracker(tmp_path) as job:
        monkeypatch.setattr(DialBacks, "dial", refused)
        found = {check.name: check for check in await examine(options(job))}
    assert found["dial_back"].level == "fail"
    assert found["dial_back"].what.endswith("Connection refused")
    assert "ports that the system chooses" in found["dial_back"].todo


@pytest.mark.trio
async def test_somebody_else_who_answers_at_our_address_is_not_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reached_another(*_: object) -> str:
        return ""

    async with tracker(tmp_path) as job:
        monkeypatch.setattr(DialBacks, "dial", reached_another)
        monkeypatch.setattr(doctor, "HEAR_WITHIN_S", 0.0)
        found = {check.name: check for check in await examine(options(job))}
    assert "not this machine" in found["dial_back"].what


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[trio.socket.SocketType]:
    with trio.socket.socket() as sock:
        await sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock


@pytest.mark.trio
async def test_only_the_trackers_own_nonce_counts() -> None:
    async with listening() as sock, trio.open_nursery() as nursery:
        address = sock.getsockname()

        async def other_server_then_tracker() -> None:
            for words in (b"GET / HTTP/1.1\r\n\r\n", b"n" * 31, b"n" * 32):
                async with await trio.open_tcp_stream(*address) as stream:
                    await stream.send_all(words)

        nursery.start_soon(other_server_then_tracker)
        assert await doctor._hear(sock, b"n" * 32)


@pytest.mark.trio
async def test_the_tracker_dials_only_the_address_that_asks_and_no_service_port(
    tmp_path: Path,
) -> None:
    async with tracker(tmp_path) as job, client(job, "operator") as operator, listening() as sock:
        port = sock.getsockname()[1]
        await operator.send(DialBack(port, b"n" * 32))
        conn, _ = await sock.accept()
        with conn:
            assert await conn.recv(64) == b"n" * 32
        assert await operator.receive() == DialedBack("127.0.0.1", "")
        with pytest.raises(ValueError, match="port"):
            await operator.send(DialBack(22, b"n" * 32))


@pytest.mark.trio
async def test_dialling_back_is_bounded_in_number_and_time(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def never(*_: object) -> trio.SocketStream:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(trio, "open_tcp_stream", never)
    dials = DialBacks()
    said: list[str] = []

    async def dial() -> None:
        said.append(await dials.dial("192.0.2.1", 4711, os.urandom(32)))

    async with trio.open_nursery() as nursery:
        for _ in range(MAX_AT_ONCE + 1):
            nursery.start_soon(dial)
    assert "try again" in said[0]
    assert said[1:] == ["no answer within 3 s, as if a firewall drops it"] * MAX_AT_ONCE
    assert trio.current_time() - DIAL_WITHIN_S == pytest.approx(0)


@pytest.mark.parametrize(
    ("check", "level", "words"),
    [
        (doctor.check_descriptors(256), "warn", "only 256 open files"),
        (doctor.check_descriptors(-1), "ok", "any number of open files"),
        (doctor.check_shared_memory(None), "ok", "does not need it"),
        (doctor.check_shared_memory(1 << 20), "warn", "1 MiB free"),
        (doctor.check_token(None), "warn", "no token file"),
        (doctor.check_token(Path("/nonexistent")), "fail", "No such file"),
    ],
)
def test_numbers_are_judged(check: Check, level: str, words: str) -> None:
    assert (check.level, words in check.what) == (level, True), check


@pytest.mark.trio
async def test_a_tracker_that_answers_something_else_fails_its_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "StatusRequest", lambda: LivenessAssertion("0"))
    async with tracker(tmp_path) as job:
        (check,) = [each for each in await examine(options(job)) if each.name == "token"]
    assert (check.level, check.what) == ("fail", "the tracker answered with Done")


def test_a_python_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", absent)
    found = levels(list(check_machine()))
    assert (found["versions"], "core" in found) == ("fail", False)


def test_the_core_and_the_reason_for_it_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTCOMM_CORE", "python")
    check = doctor.check_core()
    assert (check.level, check.what.endswith("python (FTCOMM_CORE=python)")) == ("ok", True), check
    monkeypatch.setenv("FTCOMM_CORE", "fast")
    check = doctor.check_core()
    assert (check.level, "FTCOMM_CORE is 'fast'" in check.what) == ("fail", True), check


@pytest.mark.trio
@pytest.mark.usefixtures("good_machine")
async def test_without_a_tracker_this_machine_alone_is_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = levels(await examine(WorkerOptions(), str(tmp_path / "store")))
    assert found == {**dict.fromkeys(list(ALL_IS_WELL)[:7], "ok"), "create_only": "ok"}
    monkeypatch.setattr(doctor, "reachable_addresses", list)
    monkeypatch.setattr(doctor, "is_clock_synchronised", lambda: False)
    monkeypatch.setattr(doctor, "memory_limit", lambda: 1 << 20)
    worse = levels(await examine(WorkerOptions()))
    names = ("results_memory", "addresses", "clock_service")
    assert [worse[name] for name in names] == ["warn"] * 3


def test_a_store_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check = doctor.check_create_only(str(tmp_path / "file"))
    assert (check.level, str(tmp_path / "file") in check.what) == ("fail", True), check


def test_a_newcomer_examines_the_machine_before_the_first_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("FTCOMM_TRACKER", raising=False)
    status, text = invoke("doctor", "--json", "--checkpoint", str(tmp_path / "store"))
    found = {check["name"]: check["level"] for check in json.loads(text)["checks"]}
    assert (status, found["versions"], found["create_only"]) == (0, "ok", "ok"), text
    assert "worker_id" not in found


def test_addresses_that_others_reach_are_no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
    found = [(*entry, (address, 0)) for address in ("127.0.1.1", "10.0.0.5", "10.0.0.5")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    assert "10.0.0.5" in (addresses := reachable_addresses())
    assert "127.0.1.1" not in addresses
    assert len(addresses) == len(set(addresses))


@pytest.mark.process
def test_the_command_ends_with_1_on_a_failure(serving, tmp_path: Path) -> None:  # noqa: F811 - the fixture
    _, ready = serving
    status, text = invoke("doctor", "--state-dir", ready["state_dir"])
    assert (status, "ok    dial_back: the tracker reaches 127.0.0.1:" in text) == (0, True), text
    status, text = invoke("doctor", "--state-dir", ready["state_dir"], "--json")
    found = json.loads(text)
    assert (status, found["ok"]) == (0, True)
    assert "worker_id" not in [check["name"] for check in found["checks"]]
    given = ("--tracker", ready["address"], "--token-file", str(tmp_path / "none"))
    status, text = invoke("doctor", *given)
    assert (status, "FAIL  token_file" in text, "to do: " in text) == (1, True, True)


def test_every_check_is_in_the_operators_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "watching.md").read_text(encoding="utf-8")
    assert [name for name in (*ALL_IS_WELL, "create_only") if f"| `{name}` |" not in text] == []
