"""Pairs that send under checksums, and the streams of the control thread that do."""

from types import SimpleNamespace

import pytest
import trio

from ftcomm.config.job_settings import JobSettings
from ftcomm.control.hub import Recovered
from ftcomm.control.links.checksums import checked_link, checked_stream, digest_for
from ftcomm.control.message_stream import (
    PeerClosed,
    receive_into,
    receive_message,
    send_all,
    send_message,
)
from ftcomm.errors import ProtocolError
from ftcomm.protocol.checksum_records import HEAD_BYTES, MAX_RECORD_BYTES, xxh3_digest
from ftcomm.protocol.link_messages import FetchEnd
from ftcomm.transport.checksum_link import CheckedLink


def a_hub(*, hosts=("a", "b"), transport="auto", relay=None, digest=xxh3_digest):
    members = [SimpleNamespace(host=host) for host in hosts]
    core = SimpleNamespace(
        view=SimpleNamespace(members=members, rank=0, relay_to=lambda rank: relay)
    )
    settings = JobSettings(transport=transport)
    return SimpleNamespace(core=core, settings=settings, digest=digest, recovered=Recovered())


@pytest.mark.parametrize(
    ("hub", "is_checked"),
    [
        (a_hub(), True),
        (a_hub(hosts=("a", "a")), False),
        (a_hub(hosts=("a", "a"), transport="tcp"), True),
        (a_hub(hosts=("a", "a"), relay=2), True),
        (a_hub(digest=None), False),
    ],
)
def test_what_may_be_damaged_on_its_way_is_checked(hub, is_checked):
    link = SimpleNamespace(rank=1, kind="tcp")
    assert digest_for(hub, 1) is (xxh3_digest if is_checked else None)
    assert isinstance(checked_link(hub, link), CheckedLink) is is_checked
    assert (checked_stream(hub, link, 1) is link) is not is_checked


@pytest.mark.trio
async def test_messages_and_bytes_go_through_a_checked_stream():
    near, far = trio.socket.socketpair()
    one, other = (checked_stream(a_hub(), sock, 1) for sock in (near, far))
    blob, got = bytes(range(251)) * 2000, bytearray(251 * 2000)
    assert len(blob) > 3 * MAX_RECORD_BYTES
    with near, far:
        async with trio.open_nursery() as nursery:

            async def say():
                await send_message(one, FetchEnd("first"))
                await send_all(one, blob)
                await send_message(one, FetchEnd("last"))
                near.shutdown(trio.socket.SHUT_WR)

            nursery.start_soon(say)
            assert await receive_message(other) == FetchEnd("first")
            await receive_into(other, memoryview(got))
            assert await receive_message(other) == FetchEnd("last")
            with pytest.raises(PeerClosed):
                await receive_message(other)
    assert got == blob


@pytest.mark.trio
async def test_a_flipped_bit_in_a_stream_is_told_and_counted():
    hub = a_hub()
    near, far = trio.socket.socketpair()
    with near, far:
        await send_message(checked_stream(a_hub(), near, 1), FetchEnd("something"))
        sent = bytearray(await far.recv(1000))
        sent[HEAD_BYTES + 6] ^= 1
        await near.send(sent)
        with pytest.raises(ProtocolError, match="the checksum of record 0 does not match"):
            await receive_message(checked_stream(hub, far, 1))
    assert hub.recovered.corrupted == 1
