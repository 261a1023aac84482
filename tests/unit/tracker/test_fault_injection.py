"""A tracker that dies at a planned point, and what the journal holds afterwards."""

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from ftcomm.config.environment import parse_address, read_token
from ftcomm.diagnostics.fault_record import FaultRecord
from ftcomm.errors import ConfigError, ProtocolError
from ftcomm.protocol.handshake import control_key
from ftcomm.protocol.messages import Revoke, Welcome
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.server.fault_injection import TRACKER, TrackerFault, parse_tracker_faults
from ftcomm_tracker.server.journal import Journal
from tests.unit.tracker.harness import Client, connect, hello
from tests.unit.tracker.test_launcher import environment


def test_a_specification_is_parsed_or_refused_by_name() -> None:
    assert parse_tracker_faults("1.2@plan_sent#3, 2.0@accepted") == [
        TrackerFault(1, 2, "plan_sent", 3),
        TrackerFault(2, 0, "accepted", 1),
    ]
    for spec in ("1@plan_sent", "1.2@nowhere", "1.2"):
        with pytest.raises(ConfigError, match=spec):
            parse_tracker_faults(spec)


@pytest.mark.process
@pytest.mark.trio
@pytest.mark.parametrize(
    ("fault", "revoked", "epoch"),
    [
        ("1.0@accepted#2", 0, 0),
        ("1.1@epoch_journalled", 0, 1),
        ("1.1@revoke_sent#1", 1, 1),
        ("1.1@revoke_sent#2", 2, 1),
    ],
)
async def test_it_dies_there_and_has_journalled_and_sent_what_came_before(
    tmp_path: Path, fault: str, revoked: int, epoch: int
) -> None:
    """Two workers join, which makes epoch 1; each hears of it or does not."""
    record = tmp_path / "record"
    options = ["-n", "2", "--state-dir", tmp_path, "--faults", f"{fault}>{record}"]
    process = subprocess.Popen(  # noqa: ASYNC220 - a process that is only waited for later
        [sys.executable, "-m", "ftcomm_tracker", "serve", *options],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout is not None
        address = parse_address(process.stdout.readline().split()[2].partition("=")[2])
        key = control_key(read_token(tmp_path / "token"))
        heard: list[object] = []
        async with trio.open_nursery() as nursery:
            for worker_id in ("0", "1"):
                nursery.start_soon(join, address, key, worker_id, heard)
        assert process.wait() == -9
    assert [kind for kind in heard if kind is Revoke] == [Revoke] * revoked
    fired = FaultRecord.parse(record.read_text().rstrip("\n").removeprefix(TRACKER))
    wanted = fault if "#" in fault else f"{fault}#1"
    assert (fired.fault, fired.pid, fired.incarnation) == (wanted, process.pid, 1)
    journal = Journal.open(tmp_path)
    document = journal.load()
    journal.close()
    assert document is not None
    assert Durable.from_wire(document).epoch == epoch


async def join(address: tuple[str, int], key: bytes, worker_id: str, heard: list[object]) -> None:
    """Say hello and note everything that is answered until the connection ends."""
    try:
        async with connect(address, "worker", key) as peer:
            await peer.send(hello(worker_id))
            await note_all(peer, heard)
    except (OSError, trio.BrokenResourceError, ProtocolError):
        pass  # it died before we got through


async def note_all(peer: Client, heard: list[object]) -> None:
    while (message := await peer.receive()) is not None:
        heard.append(type(message))
        assert isinstance(message, Welcome | Revoke)
