"""The proxy between plain sockets: what goes in, what comes out, and how it ends."""

import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import trio

from tests.network_faults.impairment_proxy import MAX_HELD_BYTES, Proxy
from tests.network_faults.impairments import FIN, RST, Impairments

pytestmark = pytest.mark.trio

DATA = bytes(range(256)) * 1024
Pair = tuple[Proxy, trio.SocketStream, trio.SocketStream]


@contextlib.asynccontextmanager
async def through(
    up: Impairments, down: Impairments | None = None, seed: str = "s"
) -> AsyncIterator[Pair]:
    """A proxy, a connection to it, and its other end."""
    arrived, arrivals = trio.open_memory_channel[trio.SocketStream](8)

    async def keep(stream: trio.SocketStream) -> None:
        await arrived.send(stream)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, keep, listeners)
        proxy = Proxy(listeners[0].socket.getsockname()[:2], seed=seed)
        proxy.set_impairments(up, down)
        near = await trio.open_tcp_stream(*await proxy.serve(nursery))
        async with near:
            yield proxy, near, await arrivals.receive()
        nursery.cancel_scope.cancel()


async def everything(stream: trio.SocketStream) -> bytes:
    received = b""
    async for data in stream:
        received += data
    return received


async def how_it_ends(stream: trio.SocketStream) -> tuple[int, str]:
    """Return the number of bytes received, and whether FIN or RST follows."""
    count = 0
    try:
        while data := await stream.receive_some():
            count += len(data)
    except trio.BrokenResourceError:
        return count, RST
    return count, FIN


async def exchange(near: trio.SocketStream, far: trio.SocketStream) -> tuple[bytes, bytes]:
    """Send `DATA` both ways at once; what each end got."""
    got: dict[str, bytes] = {}

    async def receive(name: str, stream: trio.SocketStream) -> None:
        got[name] = await everything(stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive, "near", near)
        nursery.start_soon(receive, "far", far)
        for stream in (near, far):
            await stream.send_all(DATA)
            await stream.send_eof()
    return got["far"], got["near"]


@pytest.mark.parametrize(
    "impairments",
    [
        Impairments(),
        Impairments(latency_s=0.02, jitter_s=0.02, slice_bytes=5000),
        Impairments(bytes_per_s=10_000_000),
        Impairments(slice_bytes=500),
    ],
)
async def test_late_and_in_pieces_but_all_of_it(impairments: Impairments) -> None:
    async with through(impairments) as (_, near, far):
        assert await exchange(near, far) == (DATA, DATA)


async def test_the_same_seed_flips_the_same_bits_and_both_directions_have_their_own() -> None:
    flipped = []
    for seed in ("s", "s", "other"):
        async with through(Impairments(flip_every=9999), seed=seed) as (proxy, near, far):
            up, down = await exchange(near, far)
            ((one, other),) = proxy.streams
            for stream, got in ((one, up), (other, down)):
                places = [i for i, (a, b) in enumerate(zip(DATA, got, strict=True)) if a != b]
                assert stream.flipped == places
            flipped.append((one.flipped, other.flipped))
    assert flipped[0] == flipped[1] != flipped[2]
    assert flipped[0][0] != flipped[0][1]


@pytest.mark.parametrize("how", [FIN, RST])
async def test_a_connection_ends_behind_so_many_bytes(how: str) -> None:
    impairments = Impairments(cut_after=1000, cut_by=how)
    async with through(impairments, Impairments()) as (_, near, far):
        await near.send_all(DATA[:1500])
        count, end = await how_it_ends(far)
        assert end == how
        assert count == 1000 or (how == RST and count < 1000)  # a reset overtakes what is unread
        assert await how_it_ends(near) == (0, how)


async def test_who_goes_on_sending_behind_a_fin_gets_no_reset_at_once() -> None:
    """As with a peer that shuts its end down and reads on."""
    async with through(Impairments(cut_after=1000), Impairments()) as (_, near, far):
        await near.send_all(DATA[:1000])
        assert await how_it_ends(far) == (1000, FIN)
        await near.send_all(DATA)
        await near.send_all(DATA)
        assert await how_it_ends(near) == (0, FIN)


@pytest.mark.parametrize("how", [FIN, RST])
async def test_all_connections_are_cut_at_once_and_new_ones_work(how: str) -> None:
    async with through(Impairments()) as (proxy, near, far):
        await near.send_all(b"x")
        assert await far.receive_some() == b"x"
        assert proxy.cut_all(how) == 1
        assert await how_it_ends(near) == await how_it_ends(far) == (0, how)
        async with await trio.open_tcp_stream(*proxy.address) as again:
            await again.send_all(b"y")
        assert proxy.target != proxy.address


async def test_one_direction_is_swallowed_and_the_other_is_not() -> None:
    async with through(Impairments(swallow=True), Impairments()) as (proxy, near, far):
        await near.send_all(DATA)
        await far.send_all(b"news")
        assert await near.receive_some() == b"news"
        proxy.set_impairments()  # too late for this connection
        await near.send_eof()
        with trio.move_on_after(0.1) as waited:
            await far.receive_some()
        assert waited.cancelled_caught
        assert proxy.streams[0][0].taken > 0


async def test_a_pause_fills_the_senders_buffers_and_ends() -> None:
    async with through(Impairments(paused=True)) as (proxy, near, far):
        with trio.move_on_after(0.2) as stuck:
            await near.send_all(bytes(8 * MAX_HELD_BYTES))
        assert stuck.cancelled_caught
        assert not proxy.streams[0][0].taken
        proxy.set_impairments()
        assert await far.receive_some(10) == bytes(10)


async def test_what_is_under_way_is_bounded() -> None:
    async with through(Impairments(latency_s=60.0)) as (proxy, near, _):
        with trio.move_on_after(0.5) as stuck:
            await near.send_all(bytes(32 * MAX_HELD_BYTES))
        assert stuck.cancelled_caught
        assert MAX_HELD_BYTES < proxy.streams[0][0].taken < 2 * MAX_HELD_BYTES


async def test_a_target_that_refuses_is_passed_on_as_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        nobody = held.getsockname()[:2]
    async with trio.open_nursery() as nursery:
        proxy = Proxy(nobody)
        async with await trio.open_tcp_stream(*await proxy.serve(nursery)) as near:
            assert await how_it_ends(near) == (0, RST)
        nursery.cancel_scope.cancel()
