"""Connections of another process, ended from outside."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ftcomm_chaos.faults import socket_reset
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


@pytest.mark.process
@pytest.mark.usefixtures("rights")
def test_an_idle_connection_of_another_process_is_ended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = listener.getsockname()
        command = [sys.executable, "-c", CALL, str(here[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as caller:
            far, there = listener.accept()
            with far:
                assert caller.stdout is not None
                assert caller.stdout.readline() == "up\n"
                assert socket_reset.reset(caller.pid, lambda _, other: other[1] == 1) == []
                assert socket_reset.reset(caller.pid, lambda *_: True) == [(there, here)]
                with pytest.raises(ConnectionResetError):
                    far.recv(1)
                assert caller.communicate(timeout=60)[0] != ""


@pytest.mark.trio
@pytest.mark.process
@pytest.mark.usefixtures("rights")
async def test_data_links_that_are_reset_from_outside_cost_an_epoch_and_no_bit(
    tmp_path: Path, reference: Reference
) -> None:
    async with job(tmp_path, 3, [6]) as made:
        _, port = await made.serve()
        for worker in range(3):
            await made.start(worker)
        await made.gate(6)
        assert socket_reset.reset(made.pid("1"), lambda _, other: other[1] != port)
        await made.open_gate()
        assert await made.models() == {await reference(3)}, made.scenario()
        assert made.epoch == 2, made.scenario()
