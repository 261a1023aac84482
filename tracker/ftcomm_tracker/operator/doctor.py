"""`ftcomm-tracker doctor`: can workers of this machine run, and take part in a tracker's job?"""

import importlib
import json
import os
import platform
import shutil
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import trio

import ftcomm
from ftcomm.config.environment import WILDCARDS, WorkerOptions, parse_endpoint, read_token
from ftcomm.config.job_settings import JobSettings
from ftcomm.config.memory_limits import memory_limit
from ftcomm.durable.opening import open_store, probe
from ftcomm.errors import ConfigError, FtcommError
from ftcomm.protocol.operator_messages import DialBack, DialedBack, StatusReply, StatusRequest
from ftcomm_tracker.core.reporting.status import standby_line
from ftcomm_tracker.core.reporting.store_words import store_line
from ftcomm_tracker.core.reporting.text_table import texts_by_kind
from ftcomm_tracker.operator.client import Conversation, open_conversation
from ftcomm_tracker.operator.machine_checks import is_clock_synchronised, reachable_addresses
from ftcomm_tracker.server.connections.listener import join_address

CONNECT_WITHIN_S = 5.0
ANSWER_WITHIN_S = 10.0  # the tracker itself dials for at most 3 s
HEAR_WITHIN_S = 3.0  # the tracker has dialled already when it says so
NONCE_BYTES = 32
MIN_PORT = 1024  # that a tracker dials back: services of the host are below
DESCRIPTORS_FEW = 1024  # two links to each of 256 peers, and as much again for the script
SHARED_MEMORY_SMALL = 64 << 20  # bytes; what containers are given unless more is asked for
CLOCKS_APART_S = 2.0  # more, and the lines of two machines' logs cannot be put side by side
ROUND_TRIP_LONG_S = 0.05  # within one region it is below 2 ms
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, never written to
_FAILURES = (FtcommError, OSError, trio.BrokenResourceError, trio.TooSlowError)

# By check, where its levels differ with the level; see `text_table`. What is ok needs nothing done.
TEXTS = texts_by_kind("""
versions: ftcomm {here}, Python {python}, numpy {numpy}
versions fail: ftcomm {here}, Python {python}, and no numpy
  > install numpy for this Python
core: arrays within a host are reduced by the core: {kind} ({why})
core fail: {cause}
  > {remedy}
descriptors: {limit} open files
descriptors warn: only {limit} open files are allowed
  > ulimit -n {few}, or LimitNOFILE= in the unit, for jobs of many workers
shared_memory: {found}
  > give a container more (docker --shm-size, an emptyDir of medium Memory) if your data loaders \
use it; ftcomm does not need it
results_memory: {memory} MiB of memory; results of a worker take up to {limit} MiB (--log-limit)
results_memory warn: {memory} MiB of memory, less than results of one worker may take ({limit} MiB)
  > give --log-limit, or this container more memory
addresses: others may reach {addresses}
addresses warn: this machine has no address but loopback
  > for several machines connect it to a network; for one this is enough
clock_service: {state}
clock_service warn: no time service keeps the clock of this machine
  > run an NTP client; nothing of ftcomm depends on it, but logs cannot be compared
create_only: {url} creates a name once, and returns what was put
create_only fail: {cause}
  > {remedy}
worker_id: a worker started like this is worker {worker_id}
worker_id warn: nothing here names a worker
  > set FTCOMM_WORKER_ID for each worker, or run this as your scheduler runs workers
token_file: {path} holds a token and is closed to others
token_file warn: no token file is named
  > give --token-file, unless the job runs on one machine without a token
token_file fail: {cause}
  > {remedy}
  > copy the job's token here
resolve: {host} is {addresses}
resolve fail: {host} has no address: {cause}
  > correct the name, /etc/hosts or the DNS; or use the address
connect: connected in {ms:.1f} ms
  > every small collective takes a few such round trips
connect fail: cannot connect to {where}: {cause}
  > start the tracker with a --host that this machine can reach, and let its port through
token: both sides hold the token of job {job_id}
token fail: {cause}
  > {remedy}
  > check that an ftcomm tracker has this port, and that the token is its own
tracker_version: the tracker is ftcomm {there}, as here
tracker_version warn: the tracker is ftcomm {there}, here it is {here}
  > install the same version everywhere
clock: the clocks are {apart_s:.1f} s apart
  > nothing of ftcomm depends on it, but logs cannot be compared: run an NTP client
job: {line}
job fail: the job is over
  > start a new one, on another --state-dir
store: {line}
  > make room in the store, or make it reachable; the job tries again by itself
listen: a worker here listens on {bind}
listen fail: cannot listen on {bind}: {cause}
  > correct FTCOMM_BIND
dial_back: the tracker reaches {where}
dial_back warn: no port below {least} is dialled back, and the others will dial {port}
  > see from another worker's machine that it leads here, or advertise another port
dial_back fail: the tracker cannot reach {where}: {cause}
  > let connections between the machines through: workers listen on ports that the system chooses \
(net.ipv4.ip_local_port_range)
advertise: the others will dial {told}, as the tracker sees it
advertise warn: the others will dial {told}, but the tracker sees this machine as {seen}
  > {advertised}
  > behind address translation set FTCOMM_ADVERTISE, to {seen} perhaps
""")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    Attributes:
        name: a stable word for scripts, see `docs/watching.md`.
        level: fail: workers here cannot take part; warn: they can, but look at it; or ok.
        what: what was found.
        todo: what to do, empty for nothing.
    """

    name: str
    level: str
    what: str
    todo: str = ""


def _check(name: str, level: str | bool, **facts: Any) -> Check:
    """Say what was found; a level of True is ok, of False warn."""
    if isinstance(level, bool):
        level = "ok" if level else "warn"
    what, _, todo = TEXTS.get(f"{name} {level}", TEXTS[name]).said(facts)
    return Check(name, level, what, "" if level == "ok" else todo)


async def examine(options: WorkerOptions, checkpoint: str = "") -> list[Check]:
    """All checks: of this machine, of a store, then of each of the tracker's addresses.

    Args:
        options: of a worker; without a tracker nothing is said of one.
        checkpoint: the store, empty for none.
    """
    checks = list(check_machine())
    if checkpoint:
        checks.append(await trio.to_thread.run_sync(check_create_only, checkpoint))
    if options.routes is not None:
        checks.append(
            _check("worker_id", options.worker_id is not None, worker_id=options.worker_id)
        )
        checks.append(check_token(options.token_file))
        for host, port in options.routes:
            checks += [check async for check in _examine_route(options, host, port)]
    return checks


# --- of this machine ----------------------------------------------------------------------------


def check_machine() -> Iterator[Check]:
    """Everything that needs neither a tracker nor what a worker is given."""
    here = {"here": ftcomm.__version__, "python": platform.python_version()}
    try:
        yield _check("versions", "ok", numpy=version("numpy"), **here)
    except PackageNotFoundError:
        yield _check("versions", "fail", **here)
    else:
        yield check_core()
    yield check_descriptors(_open_files_limit())
    there = _SHARED_MEMORY.is_dir()
    yield check_shared_memory(shutil.disk_usage(_SHARED_MEMORY).free if there else None)
    memory, log_limit = memory_limit(), JobSettings().log_limit
    facts = {"memory": memory >> 20, "limit": log_limit >> 20}
    yield _check("results_memory", memory >= log_limit, **facts)
    addresses = ", ".join(reachable_addresses())
    yield _check("addresses", bool(addresses), addresses=addresses)
    kept = is_clock_synchronised()
    state = "a time service keeps the clock" if kept else "this system does not say who keeps it"
    yield _check("clock_service", kept is not False, state=state)


def check_core() -> Check:
    """The code that reduces arrays within a host, and why it is this one."""
    core = importlib.import_module("ftcomm.core")  # needs numpy, which no tracker imports
    try:
        kind, why = core.which()
    except ConfigError as error:
        return _check("core", "fail", cause=error.cause, remedy=error.remedy)
    return _check("core", "ok", kind=kind, why=why)


def check_create_only(url: str) -> Check:
    """The store's create-only put, by which two trackers cannot both lead a job.

    Writes one object, tries to write it again, and deletes it.
    """
    try:
        probe(open_store(url))
    except FtcommError as error:
        return _check("create_only", "fail", cause=error.cause, remedy=error.remedy or None)
    return _check("create_only", "ok", url=url)


def _open_files_limit() -> int:
    resource = importlib.import_module("resource")  # Windows has none, and must get to --help
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return -1 if limit == resource.RLIM_INFINITY else int(limit)


def check_descriptors(limit: int) -> Check:
    """The limit of open files, -1 for none: a worker has up to two links to each other one."""
    many = limit < 0 or limit >= DESCRIPTORS_FEW
    shown = "any number of" if limit < 0 else limit
    return _check("descriptors", many, limit=shown, few=DESCRIPTORS_FEW)


def check_shared_memory(free: int | None) -> Check:
    """Bytes that are free in shared memory, which data loaders use; None where there is none."""
    if free is None:
        return _check("shared_memory", True, found="no /dev/shm here; ftcomm does not need it")
    text = f"{free >> 20} MiB free in /dev/shm"
    return _check("shared_memory", free >= SHARED_MEMORY_SMALL, found=text)


def check_token(path: Path | None) -> Check:
    """The token file, by itself; whether it is the right one shows at the tracker."""
    if path is None:
        return _check("token_file", False)
    try:
        read_token(path)
    except ConfigError as error:
        return _check("token_file", "fail", cause=error.cause, remedy=error.remedy or None)
    return _check("token_file", "ok", path=path)


# --- of the tracker -----------------------------------------------------------------------------


async def _examine_route(options: WorkerOptions, host: str, port: int) -> AsyncIterator[Check]:
    """Each check needs what the one before it found."""
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        yield _check("resolve", "fail", host=host, cause=error.strerror)
        return
    addresses = ", ".join(dict.fromkeys(str(entry[4][0]) for entry in found))
    yield _check("resolve", "ok", host=host, addresses=addresses)
    began = trio.current_time()
    try:
        with trio.fail_after(CONNECT_WITHIN_S):
            stream = await trio.open_tcp_stream(host, port)
    except (OSError, trio.TooSlowError) as error:
        words = str(error) or f"no answer within {CONNECT_WITHIN_S:g} s"
        yield _check("connect", "fail", where=join_address(host, port), cause=words)
        return
    round_trip_s = trio.current_time() - began
    yield _check("connect", round_trip_s <= ROUND_TRIP_LONG_S, ms=round_trip_s * 1000)
    async with stream:
        for check in await _examine_tracker(options, stream, round_trip_s):
            yield check


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
            reply = await talk.ask(StatusRequest(), StatusReply)
    except _FAILURES as error:
        return [_refused(error)]
    document: dict[str, Any] = json.loads(reply.document)
    here, there = ftcomm.__version__, str(document["version"])
    apart_s = abs(time.time() - float(document["now"]))  # the answer may be a round trip old
    return [
        _check("token", "ok", job_id=document["job_id"]),
        # the protocol's version was compared in the handshake
        _check("tracker_version", here == there, here=here, there=there),
        _check("clock", apart_s <= CLOCKS_APART_S + round_trip_s, apart_s=apart_s),
        _job(document),
        *check_store(document),
        *await _examine_listening(options, stream, talk),
    ]


def _refused(error: Exception) -> Check:
    if isinstance(error, FtcommError):
        return _check("token", "fail", cause=error.cause, remedy=error.remedy)
    words = f"the tracker ended the conversation: {str(error) or 'no answer'}"
    return _check("token", "fail", cause=words)


def _job(document: dict[str, Any]) -> Check:
    line = f"the job is {document['state'].lower()}"
    if document.get("standby"):
        line = f"{standby_line(document['standby'])}; the job has two trackers"
    return _check("job", "fail" if document["state"] == "OVER" else "ok", line=line)


def check_store(document: dict[str, Any]) -> list[Check]:
    """Judge what the tracker knows of the job's store."""
    store = document["store"]
    return [_check("store", not store["trouble"], line=store_line(store))] if store else []


# --- of the way back ----------------------------------------------------------------------------


async def _examine_listening(
    options: WorkerOptions, stream: trio.SocketStream, talk: Conversation
) -> list[Check]:
    """Listen as a worker would, and have the tracker dial."""
    local = str(stream.socket.getsockname()[0])
    bind = options.bind or local
    host, port = parse_endpoint(bind, name="FTCOMM_BIND")
    sock = trio.socket.socket(stream.socket.family, socket.SOCK_STREAM)
    with sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await sock.bind((host, port))
        except OSError as error:
            return [_check("listen", "fail", bind=bind, cause=error.strerror)]
        sock.listen(8)
        _, told = parse_endpoint(options.advertise or local, name="FTCOMM_ADVERTISE")
        port = told or int(sock.getsockname()[1])  # what the others will dial
        listening = _check("listen", "ok", bind=bind)
        if port < MIN_PORT:
            return [listening, _check("dial_back", "warn", least=MIN_PORT, port=port)]
        nonce = os.urandom(NONCE_BYTES)
        try:
            with trio.fail_after(ANSWER_WITHIN_S):
                reply = await talk.ask(DialBack(port, nonce), DialedBack)
                heard = not reply.cause and await _hear(sock, nonce)
        except _FAILURES as error:
            return [listening, _refused(error)]
    where = join_address(reply.address, port)
    cause = reply.cause or "somebody answers there, but not this machine"
    reached = _check("dial_back", "ok" if heard else "fail", where=where, cause=cause)
    return [listening, reached, _advertised(options, local, reply.address)]


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


def _advertised(options: WorkerOptions, local: str, seen: str) -> Check:
    """The address that the others will be told, against the one from which we are seen."""
    bound, _ = parse_endpoint(options.bind or local, name="FTCOMM_BIND")
    reached = local if bound in WILDCARDS else bound
    told, _ = parse_endpoint(options.advertise or reached, name="FTCOMM_ADVERTISE")
    todo = f"dial {told} from another worker's machine: the tracker dials none but {seen}"
    advertised = todo if options.advertise else None
    return _check("advertise", told == seen, told=told, seen=seen, advertised=advertised)
