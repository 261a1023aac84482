"""Connections of another process, ended from outside."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ftcomm_chaos.faults import socket_reset
from ftcomm_chaos.faults.impairments import FIN, RST
from tests.network_faults.jobs import Reference, job

CALL = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as sock:
    print("up", flush=True)
    try:
        print(sock.recv(10))
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.fixture(scope="session")
def rights() -> None:
    if lacking := socket_reset.missing():
        pytest.skip(lacking)


def end_of(read: Callable[[int], bytes]) -> str:
    try:
        return FIN if read(1) == b"" else "data"
    except ConnectionResetError:
        return RST


@pytest.mark.process
@pytest.mark.usefixtures("rights")
@pytest.mark.parametrize("how", [FIN, RST])
def test_an_idle_connection_of_another_process_is_ended(how: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = listener.getsockname()
        command = [sys.executable, "-c", CALL, str(here[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as caller:
            far, there = listener.accept()
            with far:
                assert caller.stdout is not None
                assert caller.stdout.readline() == "up\n"
                assert socket_reset.cut(caller.pid, how, lambda _, other: other[1] == 1) == []
                assert socket_reset.cut(caller.pid, how, lambda *_: True) == [(there, here)]
                assert end_of(far.recv) == how
                assert caller.communicate(timeout=60)[0] != ""


@pytest.mark.trio
@pytest.mark.process
@pytest.mark.usefixtures("rights")
@pytest.mark.parametrize("how", [RST, pytest.param(FIN, marks=pytest.mark.slow)])
async def test_data_links_that_are_reset_from_outside_cost_an_epoch_and_no_bit(
    tmp_path: Path, reference: Reference, how: str
) -> None:
    async with job(tmp_path, 3, [6]) as made:
        _, port = await made.serve()
        for worker in range(3):
            await made.start(worker)
        await made.gate(6)
        assert socket_reset.cut(made.pid("1"), how, lambda _, other: other[1] != port)
        await made.open_gate()
        assert await made.models() == {await reference(3)}, made.scenario()
        assert made.epoch == 2, made.scenario()
