"""Addresses of trackers and workers: IPv6, and listening on all of them."""

import contextlib
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import trio

from ftcomm.errors import ConfigError
from ftcomm_tracker.server.connections.listener import (
    host_in,
    join_address,
    open_listener,
    path_of,
    without_brackets,
)
from tests.unit.tracker.serving import serve, supervise
from tests.unit.tracker.test_cli import invoke
from tests.unit.tracker.test_launcher import run

SUM_AND_ADDRESSES = """
import ftcomm
with ftcomm.init() as comm:
    comm.load_checkpoint(default=0)
    print("sum", int(comm.allreduce(comm.rank + 1)))
    members = comm._session.engine._core.view.members
    print("addresses", *sorted({member.address for member in members}))
"""


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as sock:
        sock.bind(("::1", 0))
        return True
    return False


def run_two(tmp_path: Path, *options: str, **extra: str) -> tuple[str, list[str]]:
    """The tracker's address, and what two workers print that know each other over TCP alone."""
    with contextlib.ExitStack() as stack:
        given = ("-n", "2", "--transport", "tcp", *options)
        tracker, ready = stack.enter_context(serve(tmp_path / "state", *given))
        status, text = invoke("doctor", "--state-dir", ready["state_dir"])
        assert status == 0, text
        workers = [
            stack.enter_context(
                supervise(ready, "--worker-id", str(rank), script=SUM_AND_ADDRESSES, **extra)
            )
            for rank in range(2)
        ]
        outputs = [worker.communicate(timeout=60) for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0], outputs
        assert tracker.wait(timeout=60) == 0
        return ready["address"], [line[4:] for out, _ in outputs for line in out.splitlines()]


@pytest.mark.process
@pytest.mark.skipif(not has_ipv6(), reason="this kernel has no IPv6 loopback")
def test_a_job_over_ipv6(tmp_path: Path) -> None:
    address, said = run_two(tmp_path, "--host", "::1")
    assert address.startswith("[::1]:")
    assert said == ["sum 3", "addresses ::1"] * 2


@pytest.mark.process
def test_a_worker_that_listens_everywhere_advertises_where_it_is(tmp_path: Path) -> None:
    _, said = run_two(tmp_path, FTCOMM_BIND="0.0.0.0")
    assert said == ["sum 3", "addresses 127.0.0.1"] * 2


@pytest.mark.process
def test_a_worker_advertises_what_it_is_told(tmp_path: Path) -> None:
    """127.0.0.2 stands for the outside of an address translation."""
    if os.uname().sysname != "Linux":
        pytest.skip("only Linux has all of 127.0.0.0/8")
    extra = {"FTCOMM_BIND": "0.0.0.0", "FTCOMM_ADVERTISE": "127.0.0.2"}
    _, said = run_two(tmp_path, **extra)
    assert said == ["sum 3", "addresses 127.0.0.2"] * 2


@pytest.mark.process
def test_a_worker_listens_at_the_port_that_it_is_given_and_advertises_another(
    tmp_path: Path,
) -> None:
    """The lower rank dials: rank 0 says port 1, where nobody is, and nobody has to dial it."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        free = held.getsockname()[1]
    ports = "print('ports', [member.port for member in members])"
    with contextlib.ExitStack() as stack:
        given = ("-n", "2", "--transport", "tcp")
        _, ready = stack.enter_context(serve(tmp_path / "state", *given))
        endpoints = (
            {"FTCOMM_ADVERTISE": "127.0.0.1:1"},
            {"FTCOMM_BIND": f"127.0.0.1:{free}"},
        )
        workers = [
            stack.enter_context(
                supervise(
                    ready,
                    *("--worker-id", str(rank)),
                    script=f"{SUM_AND_ADDRESSES}    {ports}\n",
                    **extra,
                )
            )
            for rank, extra in enumerate(endpoints)
        ]
        said = [worker.communicate(timeout=60)[0].splitlines()[-1] for worker in workers]
    assert said == [f"[{rank}] ports [1, {free}]" for rank in range(2)]


@pytest.mark.parametrize("host", ["10.0.0.5", "fd00::5", "fe80::1%eth0", "node-1.example"])
def test_a_host_is_found_again_in_an_address(host: str) -> None:
    assert host_in(join_address(host, 4711)) == host


@pytest.mark.trio
async def test_a_name_that_nobody_knows_is_not_taken_for_another_tracker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unknown(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(trio.socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match="not known - give a name or an address of this machine"):
        await open_listener("nosuch", 4711)


@pytest.mark.trio
async def test_a_link_local_address_is_no_place_for_a_tracker() -> None:
    with pytest.raises(ConfigError, match=r"^--host fe80::1 is a link-local address"):
        await open_listener("fe80::1", 4711)


@pytest.mark.parametrize(
    ("peer", "machine"), [("127.0.0.1", ""), ("10.0.0.5", ""), ("10.0.0.6", "10.0.0.6")]
)
def test_a_worker_on_the_trackers_machine_is_known_by_its_address(peer: str, machine: str) -> None:
    ends = SimpleNamespace(
        getpeername=lambda: (peer, 50_000), getsockname=lambda: ("10.0.0.5", 4711)
    )
    stream: Any = SimpleNamespace(socket=ends)
    path = path_of(stream)
    assert path is not None
    assert (path.machine, path.tracker) == (machine, "10.0.0.5:4711")


@pytest.fixture
def own_addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of the name of this machine, to be filled in."""
    addresses: list[str] = []
    look_up = trio.socket.getaddrinfo

    async def found(host: str, *arguments: Any, **options: Any) -> list[Any]:
        if host != socket.gethostname():
            return await look_up(host, *arguments, **options)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [each for name in addresses for each in await look_up(name, 0)]

    monkeypatch.setattr(trio.socket, "getaddrinfo", found)
    return addresses


@pytest.mark.trio
@pytest.mark.parametrize(
    ("host", "own", "words"),
    [
        ("0.0.0.0", "127.0.0.1", ""),
        ("0.0.0.0", "::1", "has no IPv4 address - give the IPv4 address"),
        ("0.0.0.0", "", ""),
        ("::", "127.0.0.1", "has no IPv6 address - give the IPv6 address"),
        ("::", "::1", ""),
    ],
)
async def test_a_name_that_workers_cannot_dial_is_refused(
    own_addresses: list[str], host: str, own: str, words: str
) -> None:
    if host == "::" and not has_ipv6():
        pytest.skip("this kernel has no IPv6 loopback")
    own_addresses += [own] if own else []
    if words:
        with pytest.raises(ConfigError, match=f"^--host {host}: .* {words}"):
            await open_listener(host, 0)
        return
    listener = await open_listener(host, 0)
    await listener.aclose()


@pytest.mark.parametrize(
    ("given", "host"), [("[::1]", "::1"), ("::1", "::1"), ("[a]", "[a]"), ("a", "a")]
)
def test_an_address_in_brackets_is_taken_as_in_a_url(given: str, host: str) -> None:
    assert without_brackets(given) == host


@pytest.mark.process
@pytest.mark.skipif(not has_ipv6(), reason="this kernel has no IPv6 loopback")
def test_a_tracker_listens_at_an_address_in_brackets(tmp_path: Path) -> None:
    with serve(tmp_path / "state", "-n", "1", "--host", "[::1]") as (_, ready):
        assert ready["address"].startswith("[::1]:")


@pytest.mark.process
def test_a_worker_that_cannot_listen_says_so_once() -> None:
    script = "import ftcomm\nftcomm.init()"
    done = run(script=script, n=1, FTCOMM_BIND="192.0.2.1")
    assert (done.returncode, done.stderr.count("[0] Traceback")) == (73, 1), done.stderr
    assert "OSError" not in done.stderr
    assert "cannot listen on 192.0.2.1" in done.stderr
