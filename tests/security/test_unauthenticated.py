"""Peers that have not proven the token: refused, without an answer and without harm.

Real bytes on real sockets against the tracker's port and a worker's data port, by TCP and by Unix
socket, of a job that runs meanwhile.  The fixture `door` checks after each attack that honest
callers get in, that the epoch is the same and that the workers compute what they should.
"""

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import ftcomm
from ftcomm.errors import AuthenticationError
from ftcomm.protocol.handshake import (
    MAGIC,
    PROTOCOL_VERSION,
    TAG_BYTES,
    ClientHandshake,
    DataContext,
    _tag,
    _transcript,
    control_key,
    epoch_key,
)
from tests.security.tracker_under_attack import DOORS, PATIENCE_S, AttackedJob, Caller, Door

pytestmark = pytest.mark.process
HEAD, NONCE = 8, 32
VERSION = PROTOCOL_VERSION.to_bytes(2, "big")

GARBAGE = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: tracker\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512),
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "SMB": b"\x00\x00\x00\x54\xffSMB\x72" + bytes(80),
    "Redis": b"*1\r\n$4\r\nPING\r\n",
    "a pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "NULs": bytes(100_000),
    "noise": os.urandom(1 << 20),
    "a length of 2**32-1": b"\xff\xff\xff\xff" + bytes(1000),
    "a msgpack bomb": (b"\xdd\x00\x01\x00\x00" * 1000),
    "an unknown role": MAGIC + VERSION + b"\xff\x00" + bytes(64),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_refused_and_told_nothing(door: Door, name: str) -> None:
    with door.knock() as caller:
        caller.say(GARBAGE[name])
        caller.hang_up()
        assert caller.until_end() == b""


def test_connecting_and_going_away(door: Door) -> None:
    for _ in range(50):
        with door.knock():
            pass


def test_connecting_and_resetting(door: Door) -> None:
    for _ in range(50):
        with door.knock() as caller:
            linger = struct.pack("ii", 1, 0)
            caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def test_a_greeting_cut_short_at_any_byte(door: Door) -> None:
    greeting = door.greeting().hello()
    for size in range(1, len(greeting)):
        with door.knock() as caller:
            caller.sock.sendall(greeting[:size])
            caller.hang_up()
            assert caller.until_end() == b""


def test_another_version_is_told_ours_and_our_release_alone(door: Door) -> None:
    greeting = bytearray(door.greeting().hello())
    greeting[4:6] = b"\x00\x63"
    with door.knock() as caller:
        caller.sock.sendall(greeting[:HEAD])
        caller.hang_up()
        told = caller.until_end()
        assert (told[:4], told[HEAD:]) == (MAGIC, ftcomm.__version__.encode())


# --- proofs that are none -----------------------------------------------------------------------


def prove(caller: Caller, door: Door, proof: bytes, **changes: object) -> bytes:
    """Greet, and answer whatever the server proves with `proof`; what comes then."""
    handshake = door.greeting(**changes)
    caller.sock.sendall(handshake.hello())
    caller.exactly(HEAD + NONCE + TAG_BYTES)
    caller.sock.sendall(proof)
    return caller.until_end()


def wrong_keys(door: Door, attacked_job: AttackedJob) -> dict[str, bytes]:
    """Keys that open other doors, or none."""
    token, job, epoch = attacked_job.token, attacked_job.job, attacked_job.epoch
    keys = {
        "no token": control_key(b""),
        "a short token": control_key(token[:-1]),
        "another token": control_key(b"ab" * 32),
        "the token itself": token,
        "another job's links": epoch_key(token, "another job", epoch),
        "an older epoch": epoch_key(token, job, epoch - 1),
        "a later epoch": epoch_key(token, job, epoch + 1),
        "the tracker's": control_key(token),
        "the links'": epoch_key(token, job, epoch),
    }
    return {name: key for name, key in keys.items() if key != door.key}


def test_no_other_key_opens(door: Door, attacked_job: AttackedJob) -> None:
    """The client sees that the server's proof is made with another key; it goes on regardless."""
    for key in wrong_keys(door, attacked_job).values():
        handshake = door.greeting(key=key)
        with door.knock() as caller:
            caller.sock.sendall(handshake.hello())
            answer = caller.exactly(HEAD + NONCE + TAG_BYTES)
            caller.sock.sendall(forged_proof(handshake, key, answer))
            assert caller.until_end() == b""


def forged_proof(handshake: ClientHandshake, key: bytes, answer: bytes) -> bytes:
    """Return the proof of a client with `key` that accepted the server's proof."""
    said = _transcript(handshake._hello, answer[:HEAD], answer[HEAD : HEAD + NONCE])
    return _tag(key, b"client", said)


def test_a_servers_own_proof_sent_back_is_none(door: Door) -> None:
    with door.knock() as caller:
        caller.sock.sendall(door.greeting().hello())
        answer = caller.exactly(HEAD + NONCE + TAG_BYTES)
        caller.sock.sendall(answer[-TAG_BYTES:])
        assert caller.until_end() == b""


def test_a_recorded_session_opens_nothing(door: Door) -> None:
    handshake = door.greeting()
    said = [handshake.hello()]
    with door.knock() as honest:
        honest.sock.sendall(said[0])
        while not handshake.done:
            answer = handshake.receive(honest.exactly(handshake.bytes_wanted))
            said.append(answer)
            honest.sock.sendall(answer)
    with door.knock() as caller:
        caller.sock.sendall(b"".join(said))
        assert len(caller.until_end()) == HEAD + NONCE + TAG_BYTES


def test_a_proof_for_one_session_is_none_in_another(door: Door) -> None:
    """Two sessions side by side, with the same greeting: the server's nonces differ."""
    handshake = door.greeting()
    with door.knock() as one, door.knock() as two:
        for caller in (one, two):
            caller.sock.sendall(handshake.hello())
        two.exactly(HEAD + NONCE + TAG_BYTES)
        proof = b""
        while not proof:
            proof = handshake.receive(one.exactly(handshake.bytes_wanted))
        two.sock.sendall(proof)
        assert two.until_end() == b""


def test_a_proof_for_one_role_is_none_for_another(door: Door) -> None:
    """A relay that rewrites the greeting's role has no use for the proof that it carries."""
    handshake = door.greeting()
    greeting = bytearray(handshake.hello())
    greeting[6] = {1: 2, 4: 3}[greeting[6]]
    with door.knock() as caller:
        caller.sock.sendall(greeting)
        answer = caller.exactly(HEAD + NONCE + TAG_BYTES)
        caller.sock.sendall(forged_proof(handshake, door.key, answer))
        assert caller.until_end() == b""


def test_a_caller_does_not_prove_itself_to_who_has_not(door: Door) -> None:
    """Somebody listens where the tracker or worker should be: it gets a greeting and no proof."""
    handshake = door.greeting()
    handshake.hello()
    handshake.receive(MAGIC + VERSION + b"\x00\x00")
    with pytest.raises(AuthenticationError):
        handshake.receive(bytes(NONCE + TAG_BYTES))


@pytest.mark.parametrize("name", DOORS[1:])
def test_a_link_that_does_not_exist_is_refused(attacked_job: AttackedJob, name: str) -> None:
    if name not in attacked_job.doors:
        pytest.skip("abstract Unix addresses: Linux alone has them")
    door = attacked_job.doors[name]
    job, epoch = attacked_job.job, attacked_job.epoch
    for context in (
        b"",
        b"\xff" * 12,
        b"\xff" * 255,
        DataContext("another job", epoch, 1, 0, 1).encode(),
        DataContext(job, epoch - 1, 1, 0, 1).encode(),
        DataContext(job, epoch, 1, 1, 1).encode(),
        DataContext(job, epoch, 7, 0, 1).encode(),
    ):
        with door.knock() as caller:
            caller.sock.sendall(door.greeting(context=context).hello())
            assert caller.until_end() == b""
    with door.enter(context=DataContext(job, epoch, 1, 0, 99).encode()) as fenced:
        # the right key, and an incarnation that is not the member's
        assert fenced.until_end() == b""
    attacked_job.must_be_unharmed(name)


# --- time and number ----------------------------------------------------------------------------


def test_who_does_not_get_on_is_cut_at_the_deadline_however_busy_it_looks(
    attacked_job: AttackedJob,
) -> None:
    """The deadline is for the whole handshake: a byte now and then does not extend it."""
    slow: list[tuple[str, Caller, bytes]] = []
    for door in attacked_job.doors.values():
        greeting = door.greeting().hello()
        slow.append((f"{door.name}: silent", door.knock(), b""))
        slow.append((f"{door.name}: a byte at a time", door.knock(), greeting[:-1]))
        half = door.knock()
        half.sock.sendall(greeting[: len(greeting) // 2])
        slow.append((f"{door.name}: half a greeting", half, b""))
        no_proof = door.knock()
        no_proof.sock.sendall(greeting)
        no_proof.exactly(HEAD + NONCE + TAG_BYTES)
        slow.append((f"{door.name}: no proof", no_proof, b""))
    no_hello = attacked_job.doors["tracker"].enter()
    slow.append(("tracker: proven, and then silent", no_hello, b""))
    assert still_open_after(slow) == []
    for name in attacked_job.doors:
        attacked_job.must_be_unharmed(name)


def still_open_after(slow: list[tuple[str, Caller, bytes]]) -> list[str]:
    """Return the callers that stay connected; meanwhile each sends its words byte by byte."""
    until = time.monotonic() + PATIENCE_S
    left = {name: (caller, iter(words)) for name, caller, words in slow}
    pause = threading.Event()
    while left and time.monotonic() < until:
        for name, (caller, words) in list(left.items()):
            caller.sock.settimeout(0.01)
            try:
                caller.sock.sendall(bytes([byte for byte, _ in zip(words, range(1), strict=False)]))
                ended = caller.sock.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True
            if ended:
                caller.sock.close()
                del left[name]
        pause.wait(0.3)
    return sorted(left)


@contextmanager
def crowd(door: Door, size: int) -> Iterator[list[Caller]]:
    """So many silent connections at once."""
    callers = [door.knock() for _ in range(size)]
    try:
        yield callers
    finally:
        for caller in callers:
            caller.sock.close()


def test_two_hundred_at_once_do_not_keep_honest_callers_out(
    door: Door, attacked_job: AttackedJob
) -> None:
    with crowd(door, 200):
        for _ in range(5):
            attacked_job.honest_call(door.name)


def test_a_scanner_that_never_rests_does_not_keep_honest_callers_out(
    door: Door, attacked_job: AttackedJob
) -> None:
    stop = threading.Event()

    def scan() -> None:
        while not stop.is_set():
            with door.knock() as caller:
                caller.sock.sendall(b"GET / HTTP/1.0\r\n\r\n")

    scanner = threading.Thread(target=scan)
    scanner.start()
    try:
        for _ in range(10):
            attacked_job.honest_call(door.name)
    finally:
        stop.set()
        scanner.join()
    assert len(attacked_job.logs()) < 2 << 20
