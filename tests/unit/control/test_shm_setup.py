"""Agreement of two workers of one host on a segment, or on having none."""

import array
import logging
import os
import platform
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ftcomm.config import platforms
from ftcomm.config.job_settings import JobSettings
from ftcomm.control.links import shm_setup
from ftcomm.control.links.dial import BROKEN
from ftcomm.control.links.manager import Opened, hand_over
from ftcomm.control.links.shm_setup import answer_offer, offer_segment
from ftcomm.errors import ProtocolError
from ftcomm.protocol.codec import encode
from ftcomm.protocol.link_messages import Relayed, Sharing
from ftcomm.transport.shm_segment import NoSharedMemory, Segment, make_segment

pytestmark = [
    pytest.mark.trio,
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd_create on this system"),
]
NONCE = b"0123456789abcdef"
HERE = SimpleNamespace(host="here")


def a_driver() -> Any:
    log = logging.getLogger("ftcomm.test_sharing")
    return SimpleNamespace(hub=SimpleNamespace(log=log, causes_told=set()))


class Pair:
    """Both ends of a Unix socket, and what each side found."""

    def __init__(self) -> None:
        self.dialler, self.listener = trio.socket.socketpair()
        self.found: list[Any] = [None, None]
        self.drivers = [a_driver(), a_driver()]

    async def share(self) -> list[Any]:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._play, 0, offer_segment, self.dialler, 1)
                nursery.start_soon(self._play, 1, answer_offer, self.listener, 0)
        return self.found

    async def _play(self, side: int, play: Callable[..., Any], sock: Any, rank: int) -> None:
        self.found[side] = await play(self.drivers[side], sock, rank)

    def links(self) -> list[Any]:
        taken: list[Any] = []
        core = SimpleNamespace(
            view=SimpleNamespace(members=[HERE, HERE], rank=0, relay_to=lambda _: None)
        )
        hub = SimpleNamespace(
            core=core,
            settings=JobSettings(),
            add_link=lambda _, link: not taken.append(link),
        )
        driver: Any = SimpleNamespace(hub=hub)
        hand_over(driver, Opened([self.dialler], self.found[0]), 1, 1)
        hand_over(driver, Opened([self.listener], self.found[1]), 1, 0)
        return taken


def assert_joined(near: Any, far: Any, kind: str) -> None:
    """The two links are the ends of one, of this kind, and nothing is left over in them."""
    assert (near.kind, far.kind) == (kind, kind)
    buffer = bytearray(100)
    for one, other in ((near, far), (far, near)):
        assert one.sendmsg((b"hello",), (), 0) == 5
        assert buffer[: other.recv_into(buffer)] == b"hello"
        with pytest.raises(BlockingIOError):
            other.recv_into(buffer)
    near.close()
    far.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_both_sides_get_the_two_ends_of_one_memory(caplog: pytest.LogCaptureFixture) -> None:
    before = descriptors()
    pair = Pair()
    assert [type(found) for found in await pair.share()] == [Segment, Segment]
    assert_joined(*pair.links(), "shm")
    assert (descriptors(), warnings(caplog)) == (before, [])


def cannot_make(*_: object) -> Segment:
    raise NoSharedMemory("no room")


def cannot_take(fd: int, _: bytes) -> Segment:
    os.close(fd)
    raise NoSharedMemory("mapping was refused")


def other_memory(fd: int, nonce: bytes) -> Segment:
    os.close(fd)
    return make_segment(nonce)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("make_segment", cannot_make, "no room"),
        ("take_segment", cannot_take, "mapping was refused"),
        ("take_segment", other_memory, "the listener's nonce is not in the segment"),
    ],
    ids=["no room", "no mapping", "no shared window"],
)
async def test_what_fails_on_one_side_makes_plain_sockets_of_both_and_one_warning(
    name: str,
    value: Any,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(shm_setup, name, value)
    before = descriptors()
    drivers = [a_driver(), a_driver()]
    for _ in range(2):
        pair = Pair()
        pair.drivers = drivers
        assert await pair.share() == [None, None]
        assert_joined(*pair.links(), "unix")
    (warning,) = warnings(caplog)
    assert warning.startswith("sharing no memory with rank ")
    assert warning.endswith(f"links within this host are sockets: {reason}")
    assert descriptors() == before


async def test_other_processors_use_sockets_and_say_so_without_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    pair = Pair()
    assert await pair.share() == [None, None]
    assert_joined(*pair.links(), "unix")
    assert warnings(caplog) == []
    assert "processors of type aarch64" in caplog.text
    assert platforms.why_no_shared_memory() in pair.drivers[0].hub.causes_told


class Liar:
    """One end of a conversation, spoken by hand."""

    def __init__(self) -> None:
        self.end, other = socket.socketpair()
        self.sock = trio.socket.from_stdlib_socket(other)

    def say(self, raw: bytes, *fds: int) -> None:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        self.end.sendmsg([raw], [rights] if fds else [])

    async def hear(self, play: Callable[..., Any]) -> Any:
        self.end.shutdown(socket.SHUT_WR)
        with trio.fail_after(30), self.sock, self.end:
            return await play(a_driver(), self.sock, 1)


@pytest.mark.parametrize(
    "said",
    [b"", b"\0\0", encode(Sharing(NONCE))[:-1], encode(Relayed()), b"\0\0\0\1\xc1", bytes(4)],
    ids=["silence", "half a length", "half a word", "something else", "no message", "nothing"],
)
@pytest.mark.parametrize("play", [offer_segment, answer_offer])
async def test_what_is_no_word_on_memory_breaks_the_connection_and_keeps_no_descriptor(
    said: bytes, play: Any
) -> None:
    before = descriptors()
    liar = Liar()
    fd = os.memfd_create("test")
    liar.say(said, *([fd] if said and play is answer_offer else []))
    os.close(fd)
    with pytest.raises(BROKEN):
        await liar.hear(play)
    assert descriptors() == before


async def test_a_descriptor_that_is_no_segment_or_is_missing_makes_plain_sockets() -> None:
    before = descriptors()
    for fds in ([], [os.open(os.devnull, os.O_RDWR)]):
        liar = Liar()
        liar.say(encode(Sharing(NONCE)), *fds)
        assert await liar.hear(answer_offer) is None
        for fd in fds:
            os.close(fd)
    assert descriptors() == before


async def test_a_descriptor_beside_a_failure_is_closed() -> None:
    before = descriptors()
    liar, fd = Liar(), os.memfd_create("test")
    liar.say(encode(Sharing(failure="no memory")), fd)
    os.close(fd)
    assert await liar.hear(answer_offer) is None
    assert descriptors() == before


async def test_two_descriptors_are_one_too_many() -> None:
    before = descriptors()
    liar = Liar()
    fds = [os.memfd_create("test") for _ in range(2)]
    liar.say(encode(Sharing(NONCE)), *fds)
    for fd in fds:
        os.close(fd)
    with pytest.raises(ProtocolError, match="2 descriptors"):
        await liar.hear(answer_offer)
    assert descriptors() == before


async def test_a_side_that_says_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shm_setup, "HANDSHAKE_DEADLINE_S", 0.0)
    before = descriptors()
    for play in (offer_segment, answer_offer):
        liar = Liar()
        with liar.sock, liar.end, pytest.raises(trio.TooSlowError):
            await play(a_driver(), liar.sock, 1)
    assert descriptors() == before
