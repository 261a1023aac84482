"""Handshake: only holders of the key get through, and nothing can be altered or reused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcomm import __version__
from ftcomm.errors import AuthenticationError, FtcommError, ProtocolError, ProtocolVersionError
from ftcomm.protocol.handshake import (
    MAX_CONTEXT,
    MAX_STREAMS,
    NONCE_BYTES,
    PROTOCOL_VERSION,
    RELEASES,
    ROLES,
    TAG_BYTES,
    ClientHandshake,
    DataContext,
    HandshakeRequest,
    ServerHandshake,
    control_key,
    epoch_key,
    release_of,
)

NO_TOKEN = control_key(b"")
WHOLE = DataContext("", 1, 0, 1, 1).encode()
KEY = control_key(b"ab" * 32)
NONCE_C, NONCE_S = b"c" * NONCE_BYTES, b"s" * NONCE_BYTES
HEAD = 8


def client(key: bytes = KEY, nonce: bytes = NONCE_C, context: bytes = b"ctx") -> ClientHandshake:
    return ClientHandshake(key, role="worker", context=context, nonce=nonce)


def give(side: ClientHandshake | ServerHandshake, stream: bytes) -> tuple[bytes, bytes]:
    """Feed as much as the side wants; what it sends, and what it leaves unread."""
    sent = b""
    while side.bytes_wanted and len(stream) >= side.bytes_wanted:
        piece, stream = stream[: side.bytes_wanted], stream[side.bytes_wanted :]
        sent += side.receive(piece)
    return sent, stream


def server_proof(server: ServerHandshake, hello: bytes, key: bytes = KEY) -> bytes:
    give(server, hello)
    return server.use_key(key)


@settings(max_examples=80)
@given(
    st.sampled_from(sorted(ROLES)),
    st.binary(max_size=MAX_CONTEXT),
    st.binary(min_size=32, max_size=32),
)
def test_two_holders_of_the_key_meet_and_swallow_nothing_behind(
    role: str, context: bytes, nonce: bytes
) -> None:
    one = ClientHandshake(KEY, role=role, context=context, nonce=nonce)
    two = ServerHandshake(NONCE_S)
    assert give(two, one.hello()) == (b"", b"")
    assert (two.request, two.done) == (HandshakeRequest(role, context), False)
    proof, _ = give(one, two.use_key(KEY))
    assert (len(proof), one.done) == (TAG_BYTES, False)
    accept, behind = give(two, proof + b"first frame")
    assert (behind, two.done) == (b"first frame", True)
    assert give(one, accept + b"reply") == (b"", b"reply")
    assert one.done


def test_an_empty_key_works_where_no_token_is_asked_for() -> None:
    one, two = client(control_key(b"")), ServerHandshake(NONCE_S)
    proof, _ = give(one, server_proof(two, one.hello(), control_key(b"")))
    give(one, two.receive(proof))
    assert one.done
    assert two.done


def test_a_client_tells_nothing_to_a_server_without_the_key() -> None:
    one = client()
    with pytest.raises(AuthenticationError):
        give(one, server_proof(ServerHandshake(NONCE_S), one.hello(), control_key(b"other")))
    assert (one.done, one.bytes_wanted) == (False, 0)


def test_a_client_without_the_key_is_refused() -> None:
    one, two = client(), ServerHandshake(NONCE_S)
    server_proof(two, one.hello())
    with pytest.raises(AuthenticationError):
        two.receive(b"\0" * TAG_BYTES)
    with pytest.raises(ValueError, match="wanted"):
        two.receive(b"\0" * TAG_BYTES)


def test_a_replayed_hello_and_proof_do_not_open_a_second_session() -> None:
    one, two = client(), ServerHandshake(NONCE_S)
    proof, _ = give(one, server_proof(two, one.hello()))
    again = ServerHandshake(b"t" * NONCE_BYTES)
    server_proof(again, one.hello())
    with pytest.raises(AuthenticationError):
        again.receive(proof)


def test_a_replayed_server_proof_does_not_deceive_a_new_client() -> None:
    one = client()
    recorded = server_proof(ServerHandshake(NONCE_S), one.hello())
    with pytest.raises(AuthenticationError):
        give(client(nonce=b"d" * NONCE_BYTES), recorded)


def test_no_tag_can_be_reflected_to_its_maker() -> None:
    one, two = client(), ServerHandshake(NONCE_S)
    answer = server_proof(two, one.hello())
    with pytest.raises(AuthenticationError):
        two.receive(answer[-TAG_BYTES:])
    proof, _ = give(one, answer)
    with pytest.raises(AuthenticationError):
        one.receive(proof)


def test_a_client_cannot_be_used_to_answer_its_own_hello() -> None:
    one = client(context=b"")
    with pytest.raises(FtcommError):
        give(one, one.hello() + b"\0" * TAG_BYTES)


def test_sessions_cannot_be_spliced() -> None:
    """Two honest sessions at once; an attacker swaps their proofs."""
    first, second = client(), client(nonce=b"d" * NONCE_BYTES)
    to_first, to_second = ServerHandshake(NONCE_S), ServerHandshake(b"t" * NONCE_BYTES)
    proof, _ = give(first, server_proof(to_first, first.hello()))
    server_proof(to_second, second.hello())
    with pytest.raises(AuthenticationError):
        to_second.receive(proof)
    with pytest.raises(AuthenticationError):
        give(second, server_proof(ServerHandshake(NONCE_S), first.hello()))


def test_a_flipped_bit_anywhere_ends_the_handshake() -> None:
    hello = client().hello()
    for bit in range(len(hello) * 8):
        with pytest.raises(FtcommError):
            _meet(hello_mask=_mask(len(hello), bit))
    answer = len(server_proof(ServerHandshake(NONCE_S), hello))
    for bit in range(answer * 8):
        with pytest.raises(FtcommError):
            _meet(answer_mask=_mask(answer, bit))
    for bit in range(TAG_BYTES * 8):
        with pytest.raises(AuthenticationError):
            _meet(proof_mask=_mask(TAG_BYTES, bit))
        with pytest.raises(AuthenticationError):
            _meet(accept_mask=_mask(TAG_BYTES, bit))


def test_a_hello_cut_short_at_any_byte_only_waits() -> None:
    hello = client().hello()
    for size in range(len(hello)):
        two = ServerHandshake(NONCE_S)
        assert give(two, hello[:size])[0] == b""
        assert two.request is None


def test_another_version_is_named_on_both_sides() -> None:
    two = ServerHandshake(NONCE_S)
    newer = bytearray(client().hello()[:HEAD])
    newer[5] += 1
    with pytest.raises(ProtocolVersionError) as at_server:
        two.receive(newer)
    mine = f"this side is ftcomm {__version__}, which speaks version {PROTOCOL_VERSION}"
    assert at_server.value.cause == (
        "the client is a release of ftcomm after 0.2, which speaks protocol version"
        f" {PROTOCOL_VERSION + 1}; {mine}"
    )
    farewell = bytearray(two.farewell.replace(__version__.encode(), b"0.7.1"))
    farewell[5] += 1  # as the other version would have sent it
    one = client()
    assert one.receive(farewell[:HEAD]) == b""
    with pytest.raises(ProtocolVersionError) as at_client:
        one.receive(farewell[HEAD:])
    assert at_client.value.cause == (
        f"the server is ftcomm 0.7.1, which speaks protocol version {PROTOCOL_VERSION + 1}; {mine}"
    )


def test_the_first_release_is_named_though_it_says_nothing_but_its_version() -> None:
    head = bytearray(server_proof(ServerHandshake(NONCE_S), client().hello())[:HEAD])
    head[5:7] = 11, 1
    with pytest.raises(ProtocolVersionError) as at_client:
        client().receive(head)
    assert at_client.value.cause.startswith(
        "the server is ftcomm 0.1, which speaks protocol version 11; this side is ftcomm "
    )


def test_the_present_protocol_version_is_that_of_the_present_release() -> None:
    assert max(RELEASES) == PROTOCOL_VERSION
    assert __version__.startswith(f"{RELEASES[PROTOCOL_VERSION]}.")
    assert release_of(3) == "a release of ftcomm before 0.1"


def test_a_version_lowered_on_the_way_is_refused() -> None:
    older = bytearray(client().hello()[:HEAD])
    older[5] -= 1
    with pytest.raises(ProtocolVersionError):
        ServerHandshake(NONCE_S).receive(older)


@pytest.mark.parametrize("stray", [b"GET / HT", b"\x16\x03\x01\x02\0\x01\0\x01", b"SSH-2.0-"])
def test_a_unknown_peer_is_refused_at_eight_bytes_and_told_nothing(stray: bytes) -> None:
    two = ServerHandshake(NONCE_S)
    with pytest.raises(ProtocolError):
        two.receive(stray)
    assert (two.farewell, two.bytes_wanted) == (b"", 0)
    with pytest.raises(ProtocolError):
        client().receive(stray)


def test_an_unknown_role_and_a_refusing_server_are_protocol_errors() -> None:
    hello = bytearray(client().hello()[:HEAD])
    hello[6] = 99
    with pytest.raises(ProtocolError, match="role 99"):
        ServerHandshake(NONCE_S).receive(hello)
    head = bytearray(server_proof(ServerHandshake(NONCE_S), client().hello())[:HEAD])
    head[6] = 1
    with pytest.raises(ProtocolError, match="status 1"):
        client().receive(head)


def test_a_careless_driver_is_told() -> None:
    two = ServerHandshake(NONCE_S)
    with pytest.raises(ValueError, match="no key"):
        two.use_key(KEY)
    with pytest.raises(ValueError, match="wanted"):
        two.receive(b"x" * (HEAD + 1))
    with pytest.raises(ValueError, match="nonce"):
        ServerHandshake(b"short")
    with pytest.raises(ValueError, match="context"):
        client(context=b"x" * (MAX_CONTEXT + 1))


def test_keys_differ_by_token_job_and_epoch() -> None:
    keys = [
        control_key(b"t"),
        control_key(b"u"),
        epoch_key(b"t", "job", 1),
        epoch_key(b"u", "job", 1),
        epoch_key(b"t", "job", 2),
        epoch_key(b"t", "jobs", 1),
    ]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {32}


def test_a_link_of_an_old_epoch_is_refused_by_its_key() -> None:
    context = DataContext("job", 7, 1, 2, 3)
    one = ClientHandshake(
        epoch_key(b"t", "job", 7), role="data", context=context.encode(), nonce=NONCE_C
    )
    two = ServerHandshake(NONCE_S)
    give(two, one.hello())
    assert two.request == HandshakeRequest("data", context.encode())
    with pytest.raises(AuthenticationError):
        give(one, two.use_key(epoch_key(b"t", "job", 8)))


@given(
    st.builds(
        DataContext,
        st.text(max_size=50),
        st.integers(0, 2**32 - 1),
        st.integers(0, 1023),
        st.integers(0, 1023),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 1),
        st.integers(2, MAX_STREAMS),
    )
)
def test_a_data_context_comes_back(context: DataContext) -> None:
    assert DataContext.decode(context.encode()) == context


def test_a_bad_data_context_is_refused() -> None:
    for raw in (b"", WHOLE[:-1], WHOLE + b"\xff"):
        with pytest.raises(ProtocolError):
            DataContext.decode(raw)
    with pytest.raises(ValueError, match="job id"):
        DataContext("x" * 250, 1, 1, 1, 1).encode()
    with pytest.raises(ValueError, match="from_rank"):
        DataContext("job", 1, -1, 1, 1).encode()


@pytest.mark.parametrize(("stream", "streams"), [(1, 1), (3, 3), (0, 0), (0, 17), (255, 2)])
def test_a_stream_that_cannot_be_is_refused(stream: int, streams: int) -> None:
    raw = DataContext("job", 1, 0, 1, 1, 1, stream, streams).encode()
    with pytest.raises(ProtocolError, match=f"stream {stream} of {streams}"):
        DataContext.decode(raw)


def _mask(size: int, bit: int) -> bytes:
    return (1 << bit).to_bytes(size, "big")


def _flip(data: bytes, mask: bytes) -> bytes:
    padded = mask.ljust(len(data), b"\0")
    return bytes(a ^ b for a, b in zip(data, padded, strict=False))


def _meet(
    *,
    hello_mask: bytes = b"",
    answer_mask: bytes = b"",
    proof_mask: bytes = b"",
    accept_mask: bytes = b"",
) -> None:
    """One handshake with bits flipped on the way; a side left waiting counts as refused."""
    one, two = client(), ServerHandshake(NONCE_S)
    give(two, _flip(one.hello(), hello_mask))
    if two.request is None:
        raise ProtocolError("the server waits for more until the handshake's deadline")
    proof, _ = give(one, _flip(two.use_key(KEY), answer_mask))
    accept, _ = give(two, _flip(proof, proof_mask))
    give(one, _flip(accept, accept_mask))
    assert one.done
    assert two.done


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (NO_TOKEN, "this process was given no token file - name the job's token file: FTCOMM_TOK"),
        (
            control_key(b"cd" * 32),
            "does not hold this job's token, or this process does not - give",
        ),
    ],
    ids=["no token", "another token"],
)
def test_who_was_given_no_token_is_told_that(key: bytes, said: str) -> None:
    one = client(key)
    with pytest.raises(AuthenticationError) as refused:
        give(one, server_proof(ServerHandshake(NONCE_S), one.hello()))
    assert said in str(refused.value)
