"""`ftcomm-tracker doctor`: can a worker of this machine take part in the tracker's job?"""

import json
import os
import socket
import time
from typing import Any

import trio

from ftcomm.config.environment import WILDCARDS, WorkerOptions, parse_endpoint, read_token
from ftcomm.errors import ConfigError, FtcommError
from ftcomm.protocol.operator_messages import DialBack, DialedBack, StatusReply, StatusRequest
from ftcomm_tracker.core.reporting.standby_text import standby_line
from ftcomm_tracker.core.reporting.store_text import store_line
from ftcomm_tracker.operator.client import Conversation, open_conversation
from ftcomm_tracker.operator.doctor_checks import (
    Check,
    check_machine,
    judge_clocks,
    judge_round_trip,
    judge_versions,
)
from ftcomm_tracker.server.connections.listener import join_address

CONNECT_WITHIN_S = 5.0
ANSWER_WITHIN_S = 10.0  # the tracker itself dials for at most 3 s
HEAR_WITHIN_S = 3.0  # the tracker has dialled already when it says so
NONCE_BYTES = 32
MIN_PORT = 1024  # that a tracker dials back: services of the host are below
SAME_PORTS = "workers listen on ports that the system chooses (net.ipv4.ip_local_port_range)"


async def examine(options: WorkerOptions) -> list[Check]:
    """All checks: of this machine, then of each of the tracker's addresses.

    Raises:
        ConfigError: no tracker is named.
    """
    if options.routes is None:
        raise ConfigError("no tracker is named", remedy="give --tracker HOST:PORT")
    checks = check_machine(options)
    for host, port in options.routes:
        checks += await _examine_route(options, host, port)
    return checks


async def _examine_route(options: WorkerOptions, host: str, port: int) -> list[Check]:
    """Each check needs what the one before it found."""
    where = join_address(host, port)
    checks: list[Check] = []
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        todo = "correct the name, /etc/hosts or the DNS; or use the address"
        return [Check("resolve", "fail", f"{host} has no address: {error.strerror}", todo)]
    addresses = ", ".join(dict.fromkeys(str(entry[4][0]) for entry in found))
    checks.append(Check("resolve", "ok", f"{host} is {addresses}"))
    began = trio.current_time()
    try:
        with trio.fail_after(CONNECT_WITHIN_S):
            stream = await trio.open_tcp_stream(host, port)
    except (OSError, trio.TooSlowError) as error:
        words = str(error) or f"no answer within {CONNECT_WITHIN_S:g} s"
        todo = (
            "start the tracker with a --host that this machine can reach, and let its port through"
        )
        return [*checks, Check("connect", "fail", f"cannot connect to {where}: {words}", todo)]
    round_trip_s = trio.current_time() - began
    checks.append(judge_round_trip(round_trip_s))
    async with stream:
        return checks + await _examine_tracker(options, stream, round_trip_s)


async def _examine_tracker(
    options: WorkerOptions, stream: trio.SocketStream, round_trip_s: float
) -> list[Check]:
    try:
        token = read_token(options.token_file)
    except ConfigError:  # said already
        return []
    try:
        with trio.fail_after(ANSWER_WITHIN_S):
            talk = await open_conversation(stream, token)
            reply = await talk.ask(StatusRequest())
    except (FtcommError, OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
        return [_refused(error)]
    assert isinstance(reply, StatusReply)
    document: dict[str, Any] = json.loads(reply.document)
    return [
        Check("token", "ok", f"both sides hold the token of job {document['job_id']}"),
        judge_versions(str(document["version"])),
        judge_clocks(time.time(), float(document["now"]), round_trip_s),
        _job(document),
        *check_store(document),
        *await _examine_listening(options, stream, talk),
    ]


def _refused(error: Exception) -> Check:
    if isinstance(error, FtcommError):
        return Check("token", "fail", error.cause, error.remedy)
    words = str(error) or "no answer"
    todo = "check that an ftcomm tracker has this port, and that the token is its own"
    return Check("token", "fail", f"the tracker ended the conversation: {words}", todo)


def _job(document: dict[str, Any]) -> Check:
    if document.get("standby"):
        return Check("job", "ok", f"{standby_line(document['standby'])}; the job has two trackers")
    if document["state"] != "OVER":
        return Check("job", "ok", f"the job is {document['state'].lower()}")
    return Check("job", "fail", "the job is over", "start a new one, on another --state-dir")


def check_store(document: dict[str, Any]) -> list[Check]:
    """Judge what the tracker knows of the job's store."""
    store = document["store"]
    if not store:
        return []
    if store["trouble"]:
        todo = "make room in the store, or make it reachable; the job tries again by itself"
        return [Check("store", "warn", store_line(store), todo)]
    return [Check("store", "ok", store_line(store))]


async def _examine_listening(
    options: WorkerOptions, stream: trio.SocketStream, talk: Conversation
) -> list[Check]:
    """Listen as a worker would, and have the tracker dial."""
    local = str(stream.socket.getsockname()[0])
    host, port = parse_endpoint(options.bind or local, name="FTCOMM_BIND")
    sock = trio.socket.socket(stream.socket.family, socket.SOCK_STREAM)
    with sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await sock.bind((host, port))
        except OSError as error:
            words = f"cannot listen on {options.bind or local}: {error.strerror}"
            return [Check("listen", "fail", words, "correct FTCOMM_BIND")]
        sock.listen(8)
        _, told = parse_endpoint(options.advertise or local, name="FTCOMM_ADVERTISE")
        port = told or int(sock.getsockname()[1])  # what the others will dial
        listening = Check("listen", "ok", f"a worker here listens on {options.bind or local}")
        if port < MIN_PORT:
            return [listening, _not_tried(port)]
        nonce = os.urandom(NONCE_BYTES)
        try:
            with trio.fail_after(ANSWER_WITHIN_S):
                reply = await talk.ask(DialBack(port, nonce))
                assert isinstance(reply, DialedBack)
                heard = not reply.cause and await _hear(sock, nonce)
        except (FtcommError, OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
            return [listening, _refused(error)]
    return [
        listening,
        _reached(reply, port, heard=heard),
        _advertised(options, local, reply.address),
    ]


async def _hear(sock: trio.socket.SocketType, nonce: bytes) -> bool:
    """True if somebody connects who sends `nonce`; others are released."""
    with trio.move_on_after(HEAR_WITHIN_S):
        while True:
            conn, _ = await sock.accept()
            with conn:
                received = b""
                while len(received) < len(nonce) and (data := await conn.recv(len(nonce))):
                    received += data
            if received == nonce:
                return True
    return False


def _not_tried(port: int) -> Check:
    text = f"no port below {MIN_PORT} is dialled back, and the others will dial {port}"
    todo = "see from another worker's machine that it leads here, or advertise another port"
    return Check("dial_back", "warn", text, todo)


def _reached(reply: DialedBack, port: int, *, heard: bool) -> Check:
    where = join_address(reply.address, port)
    if heard:
        return Check("dial_back", "ok", f"the tracker reaches {where}")
    todo = f"let connections between the machines through: {SAME_PORTS}"
    cause = reply.cause or "somebody answers there, but not this machine"
    return Check("dial_back", "fail", f"the tracker cannot reach {where}: {cause}", todo)


def _advertised(options: WorkerOptions, local: str, seen: str) -> Check:
    """The address that the others will be told, against the one from which we are seen."""
    bound, _ = parse_endpoint(options.bind or local, name="FTCOMM_BIND")
    reached = local if bound in WILDCARDS else bound
    told, _ = parse_endpoint(options.advertise or reached, name="FTCOMM_ADVERTISE")
    if told == seen:
        return Check("advertise", "ok", f"the others will dial {told}, as the tracker sees it")
    text = f"the others will dial {told}, but the tracker sees this machine as {seen}"
    if options.advertise:
        todo = f"dial {told} from another worker's machine: the tracker dials none but {seen}"
    else:
        todo = f"behind address translation set FTCOMM_ADVERTISE, to {seen} perhaps"
    return Check("advertise", "warn", text, todo)
